"""Calls of Hermes, Qwen2.5 and Qwen3: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`."""

from __future__ import annotations

from parsers.json_calls import JsonCallParser


class HermesToolParser(JsonCallParser):
    """Reads JSON calls between `<tool_call>` tags."""

    aliases = ("qwen", "qwen25", "qwen2_5", "qwen3")
    openers = ("<tool_call>",)
    closers = ("</tool_call>",)
    markers = (*openers, *closers)
