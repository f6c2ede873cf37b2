"""Granite 3.2 thinking: English phrases instead of tags."""

from __future__ import annotations

from parsers.reasoning_parser import ReasoningParser


class GraniteReasoningParser(ReasoningParser):
    """Reads from one phrase to the other."""

    pairs = (
        ("Here is my thought process:", "Here is my response:"),
        ("Here's my thought process:", "Here's my response:"),
    )
