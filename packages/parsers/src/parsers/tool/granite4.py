"""Granite 4 calls: Hermes' form, with text allowed on both sides."""

from __future__ import annotations

from parsers.json_calls import JsonCallParser


class Granite4ToolParser(JsonCallParser):
    """Reads JSON calls between `<tool_call>` tags."""

    openers = ("<tool_call>",)
    closers = ("</tool_call>",)
    markers = (*openers, *closers)
