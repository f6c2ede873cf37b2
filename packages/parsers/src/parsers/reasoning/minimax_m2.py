"""MiniMax-M2 thinking: the prompt opens the block, the model closes it."""

from __future__ import annotations

from parsers.reasoning_parser import ReasoningParser


class MinimaxM2ReasoningParser(ReasoningParser):
    """Reads thinking from the first character on; calls end it too."""

    aliases = ("minimax",)
    is_opened_by_default = True
    implicit_ends = ("<minimax:tool_call>",)
