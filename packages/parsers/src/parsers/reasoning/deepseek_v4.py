"""DeepSeek V4 thinking: on only where the prompt opens the block."""

from __future__ import annotations

from parsers.reasoning_parser import ReasoningParser


class DeepseekV4ReasoningParser(ReasoningParser):
    """Reads a block that the prompt or the model opens; calls end it too."""

    aliases = ("deepseekv4",)
    implicit_ends = ("<\uff5cDSML\uff5ctool_calls>",)
