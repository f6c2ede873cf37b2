"""OLMo 3 thinking: the prompt opens the block; the tags are plain text."""

from __future__ import annotations

from parsers.reasoning_parser import ReasoningParser


class Olmo3ReasoningParser(ReasoningParser):
    """Reads thinking from the first character on."""

    is_opened_by_default = True
