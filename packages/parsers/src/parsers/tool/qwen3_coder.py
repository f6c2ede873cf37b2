"""Qwen3-Coder calls: `<tool_call><function=NAME><parameter=KEY>value</parameter></function></tool_call>`."""

from __future__ import annotations

from parsers.tagged import TaggedParser


class Qwen3CoderToolParser(TaggedParser):
    """Reads function tags, inside `<tool_call>` or without it, which models forget."""

    aliases = ("qwen3_xml", "mimo", "step3p5", "nemotron_v3")
    block_open = "<tool_call>"
    block_close = "</tool_call>"
    call_open = "<function="
    call_close = "</function>"
    param_open = "<parameter="
    param_close = "</parameter>"
    openers = (block_open, call_open)
    markers = (block_open, block_close)
    trims_newline = True
