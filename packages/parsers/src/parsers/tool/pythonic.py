"""Python calls in a list: `[f(a=1), g(b="x")]`, at the start of a line."""

from __future__ import annotations

from parsers.python_calls import PythonCallParser


class PythonicToolParser(PythonCallParser):
    """Reads a bare list of calls of offered tools."""

    openers = ("[",)
