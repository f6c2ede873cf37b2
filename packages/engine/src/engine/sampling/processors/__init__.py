"""One file per sampling step; steps do not know each other."""
