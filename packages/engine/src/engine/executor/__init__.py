"""Executors: who runs a step, and where."""
