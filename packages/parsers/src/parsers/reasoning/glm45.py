"""GLM-4.5 to 4.7 thinking: `<think>`, opened by the model or the prompt."""

from __future__ import annotations

from parsers.reasoning_parser import ReasoningParser


class Glm45ReasoningParser(ReasoningParser):
    """Reads a block that the prompt or the model opens."""

    aliases = ("glm47", "glm4_moe", "glm")
