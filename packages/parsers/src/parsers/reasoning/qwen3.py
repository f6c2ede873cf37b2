"""Qwen3 thinking: opened by the model or the prompt; off after an empty block."""

from __future__ import annotations

from parsers.reasoning_parser import ReasoningParser


class Qwen3ReasoningParser(ReasoningParser):
    """Reads `<think>`; a call in full form ends the thinking too, since models forget to close it."""

    aliases = ("qwen3_coder", "mimo", "qwen3_xml")
    implicit_ends = ('<tool_call>\n{"name":', "<tool_call>\n<function=")
