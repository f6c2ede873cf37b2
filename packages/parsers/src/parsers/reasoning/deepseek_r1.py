"""DeepSeek R1 thinking: the prompt opens the block, the model closes it with `</think>`."""

from __future__ import annotations

from parsers.reasoning_parser import ReasoningParser


class DeepseekR1ReasoningParser(ReasoningParser):
    """Reads thinking from the first character on."""

    aliases = ("holo2",)
    is_opened_by_default = True
