"""DeepSeek V3.2 calls: DSML inside a `function_calls` block."""

from __future__ import annotations

from parsers.dsml import DsmlParser, dsml_tag


class DeepseekV32ToolParser(DsmlParser):
    """Reads DSML calls."""

    aliases = ("deepseekv32",)
    block_open = dsml_tag("function_calls")
    block_close = dsml_tag("function_calls", is_closing=True)
    openers = (block_open,)
    markers = (block_open, block_close)
