"""Llama 4 Python calls: a list, bare or between `<|python_start|>` and `<|python_end|>`."""

from __future__ import annotations

from parsers.python_calls import PythonCallParser


class Llama4PythonicToolParser(PythonCallParser):
    """Reads a list of calls with or without its tokens."""

    openers = ("<|python_start|>", "[")
    closer = "<|python_end|>"
    markers = ("<|python_start|>", closer)
