"""Models: one file per family; siblings do not import each other."""
