"""Kimi K2 thinking: `<think>`; the section of calls ends it too."""

from __future__ import annotations

from parsers.reasoning_parser import ReasoningParser


class KimiK2ReasoningParser(ReasoningParser):
    """Reads a block that the prompt or the model opens."""

    implicit_ends = ("<|tool_calls_section_begin|>",)
