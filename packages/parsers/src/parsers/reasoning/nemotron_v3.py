"""Nemotron 3 thinking: the prompt opens the block unless thinking is off."""

from __future__ import annotations

from parsers.reasoning_parser import ReasoningParser


class NemotronV3ReasoningParser(ReasoningParser):
    """Reads thinking from the first character on."""

    aliases = ("nemotron",)
    is_opened_by_default = True
