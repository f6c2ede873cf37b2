"""Hunyuan-A13B thinking: `<think>...</think>` and then `<answer>...</answer>`."""

from __future__ import annotations

from parsers.cursor import Step
from parsers.reasoning_parser import ReasoningParser
from parsers.scanner import Markers


class HunyuanA13bReasoningParser(ReasoningParser):
    """Reads a block of thinking, and takes the tags off the answer behind it."""

    aliases = ("hunyuan",)

    def _read_answer(self, starts: Markers) -> Step[str]:
        space = yield from self._cursor.space()
        if (yield from self._cursor.take("<answer>")):
            yield from self._cursor.space()
            yield from self._cursor.until(Markers("</answer>"), self._answer)
            yield from self._cursor.space()
        elif space:
            self._answer(space)
        return (yield from super()._read_answer(starts))
