"""Mistral thinking: `[THINK]`, or `<think>` before tokenizer v13, anywhere in the answer."""

from __future__ import annotations

from parsers.reasoning_parser import ReasoningParser


class MistralReasoningParser(ReasoningParser):
    """Reads blocks wherever they open."""

    pairs = (("[THINK]", "[/THINK]"), ("<think>", "</think>"))
    reopens = True
