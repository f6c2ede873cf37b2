"""Attention: the layer, the backends and how one is chosen."""
