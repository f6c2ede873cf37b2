"""Loaders: where weights come from, and how they get into a model's parameters."""
