"""One file per method; siblings do not import each other."""
