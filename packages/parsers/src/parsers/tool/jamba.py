"""Jamba calls: `<tool_calls>[{"name": ..., "arguments": {...}}]</tool_calls>`."""

from __future__ import annotations

from parsers.json_calls import JsonCallParser


class JambaToolParser(JsonCallParser):
    """Reads a JSON list, or objects one after another, between `<tool_calls>` tags."""

    aliases = ("minimax",)
    openers = ("<tool_calls>",)
    closers = ("</tool_calls>",)
    markers = (*openers, *closers)
