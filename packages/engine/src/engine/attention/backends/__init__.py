"""One file per backend; siblings do not import each other."""
