"""Step3 thinking: the prompt opens the block, the model closes it."""

from __future__ import annotations

from parsers.reasoning_parser import ReasoningParser


class Step3ReasoningParser(ReasoningParser):
    """Reads thinking from the first character on."""

    aliases = ("step3p5",)
    is_opened_by_default = True
