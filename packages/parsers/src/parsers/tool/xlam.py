"""xLAM calls: a JSON list, bare or behind one of the markers that its versions use."""

from __future__ import annotations

from parsers.json_calls import JsonCallParser


class XlamToolParser(JsonCallParser):
    """Reads JSON calls, bare, between `<tool_call>` tags, behind `[TOOL_CALLS]`, or in a fenced block."""

    openers = ("<tool_call>", "[TOOL_CALLS]", "```json\n", "```\n", "[", "{")
    closers = ("</tool_call>", "```")
    markers = ("<tool_call>", "</tool_call>", "[TOOL_CALLS]")
