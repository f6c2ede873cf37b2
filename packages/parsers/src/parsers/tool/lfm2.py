"""LFM2 calls: `<|tool_call_start|>[f(a=1)]<|tool_call_end|>`."""

from __future__ import annotations

from parsers.python_calls import PythonCallParser


class Lfm2ToolParser(PythonCallParser):
    """Reads a list of Python calls between its tokens."""

    openers = ("<|tool_call_start|>",)
    closer = "<|tool_call_end|>"
    markers = (*openers, closer)
