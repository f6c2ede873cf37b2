"""OpenAI gpt-oss reasoning, in harmony channels."""

from __future__ import annotations

from collections.abc import Mapping

from parsers.harmony import HarmonyParser


class OpenaiGptossReasoningParser(HarmonyParser):
    """Reads a whole harmony answer, reasoning and calls."""

    aliases = ("harmony", "openai", "gpt_oss", "gptoss")

    def __init__(
        self,
        *,
        thinking: bool | None = None,
        prompt_tail: str | None = None,
        marker_ids: Mapping[str, int] | None = None,
    ) -> None:
        """Make a parser for one answer.

        Args:
            thinking: True if the prompt has opened an analysis message.
            prompt_tail: the end of the prompt, from which `thinking` is read where it is None.
            marker_ids: see `FormatParser`.
        """
        if thinking is None and prompt_tail is not None:
            thinking = prompt_tail.rstrip().endswith("<|channel|>analysis<|message|>")
        super().__init__(is_thinking=bool(thinking), marker_ids=marker_ids)
