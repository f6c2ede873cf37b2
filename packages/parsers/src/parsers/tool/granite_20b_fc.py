"""Granite 20B function-calling: `<function_call> {"name": ..., "arguments": {...}}` for each call."""

from __future__ import annotations

from parsers.json_calls import JsonCallParser


class Granite20bFcToolParser(JsonCallParser):
    """Reads one JSON call behind each marker."""

    openers = ("<function_call>",)
    markers = openers
