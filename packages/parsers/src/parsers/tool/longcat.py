"""LongCat calls: Hermes' form under its own tag."""

from __future__ import annotations

from parsers.json_calls import JsonCallParser


class LongcatToolParser(JsonCallParser):
    """Reads JSON calls between `<longcat_tool_call>` tags."""

    openers = ("<longcat_tool_call>",)
    closers = ("</longcat_tool_call>",)
    markers = (*openers, *closers)
