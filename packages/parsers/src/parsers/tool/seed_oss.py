"""Seed-OSS calls: Qwen3-Coder's form under `<seed:tool_call>`."""

from __future__ import annotations

from parsers.tagged import TaggedParser


class SeedOssToolParser(TaggedParser):
    """Reads function tags inside `<seed:tool_call>`."""

    block_open = "<seed:tool_call>"
    block_close = "</seed:tool_call>"
    call_open = "<function="
    call_close = "</function>"
    param_open = "<parameter="
    param_close = "</parameter>"
    openers = (block_open,)
    markers = (block_open, block_close)
    trims_newline = True
