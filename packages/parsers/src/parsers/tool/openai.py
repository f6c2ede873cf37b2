"""OpenAI gpt-oss calls, in harmony channels."""

from __future__ import annotations

from parsers.harmony import HarmonyParser


class OpenaiToolParser(HarmonyParser):
    """Reads a whole harmony answer, reasoning and calls."""

    aliases = ("harmony", "openai_gptoss", "gpt_oss", "gptoss")
