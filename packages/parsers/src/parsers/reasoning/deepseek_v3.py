"""DeepSeek V3.1 and V3.2 thinking: on only where the prompt opens the block."""

from __future__ import annotations

from parsers.reasoning_parser import ReasoningParser


class DeepseekV3ReasoningParser(ReasoningParser):
    """Reads a block that the prompt or the model opens."""

    aliases = ("deepseek_v31", "deepseek_v32")
