"""Hunyuan-A13B calls: `<tool_calls>[{"name": ..., "arguments": {...}}]</tool_calls>`."""

from __future__ import annotations

from parsers.json_calls import JsonCallParser


class HunyuanA13bToolParser(JsonCallParser):
    """Reads a JSON list between `<tool_calls>` tags."""

    aliases = ("hunyuan",)
    openers = ("<tool_calls>",)
    closers = ("</tool_calls>",)
    markers = (*openers, *closers)
