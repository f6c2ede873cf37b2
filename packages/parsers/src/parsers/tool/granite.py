"""Granite 3 calls: a marker, then a JSON list that nothing closes."""

from __future__ import annotations

from parsers.json_calls import JsonCallParser


class GraniteToolParser(JsonCallParser):
    """Reads a JSON list behind the token of 3.0 or the string of 3.1."""

    openers = ("<|tool_call|>", "<tool_call>")
    markers = openers
