"""Gemma 4 thinking: a channel called thought, anywhere in the answer."""

from __future__ import annotations

from parsers.reasoning_parser import ReasoningParser


class Gemma4ReasoningParser(ReasoningParser):
    """Reads blocks wherever they open."""

    pairs = (("<|channel>thought", "<channel|>"),)
    reopens = True
