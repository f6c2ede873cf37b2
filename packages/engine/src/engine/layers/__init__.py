"""Layers: the parts that models are made of, each aware of its share of a tensor-parallel group."""
