"""Gemma 4 calls: `<|tool_call>call:NAME{key:<|"|>text<|"|>,n:1}<tool_call|>`."""

from __future__ import annotations

from parsers.braces import BracedCallParser


class Gemma4ToolParser(BracedCallParser):
    """Reads braced calls between their tokens."""

    openers = ("<|tool_call>",)
    closer = "<tool_call|>"
    quote = '<|"|>'
    markers = (*openers, closer, quote)
