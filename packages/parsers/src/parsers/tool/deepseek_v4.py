"""DeepSeek V4 calls: DSML inside a `tool_calls` block."""

from __future__ import annotations

from parsers.dsml import DsmlParser, dsml_tag


class DeepseekV4ToolParser(DsmlParser):
    """Reads DSML calls."""

    aliases = ("deepseekv4",)
    block_open = dsml_tag("tool_calls")
    block_close = dsml_tag("tool_calls", is_closing=True)
    openers = (block_open,)
    markers = (block_open, block_close)
