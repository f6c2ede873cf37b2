"""What all reasoning parsers share: a block of thinking, then the answer.

The block may be opened by the model or by the prompt; `thinking` says which, and where it is not said the
end of the prompt does, or what the format usually does. Once a block is closed the same tags in the answer
are prose. White space beside the tags belongs to them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from parsers.base import FormatParser
from parsers.cursor import Step
from parsers.events import ReasoningDelta, TextDelta
from parsers.scanner import Markers


class ReasoningParser(FormatParser):
    """Reads `start thinking end answer`."""

    #: What opens and closes a block, in pairs; the first pair is what the format writes itself.
    pairs: ClassVar[tuple[tuple[str, str], ...]] = (("<think>", "</think>"),)
    #: Whether a block is open from the first character where nothing says otherwise.
    is_opened_by_default: ClassVar[bool] = False
    #: Whether a block may open anywhere and more than once.
    reopens: ClassVar[bool] = False
    #: Markup of calls that ends the thinking without its closing tag, and belongs to the answer.
    implicit_ends: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        # A format states its tags once.
        super().__init_subclass__()
        cls.markers = tuple(tag for pair in cls.pairs for tag in pair)
        cls.reasoning_ends = tuple(end for _, end in cls.pairs)

    def __init__(
        self,
        *,
        thinking: bool | None = None,
        prompt_tail: str | None = None,
        marker_ids: Mapping[str, int] | None = None,
    ) -> None:
        """Make a parser for one answer.

        Args:
            thinking: True if the prompt has opened the block, False if it has closed it or thinking is off:
                then the whole output is the answer. None to let `prompt_tail` decide.
            prompt_tail: the end of the prompt.
            marker_ids: see `FormatParser`.
        """
        super().__init__(marker_ids=marker_ids)
        if thinking is None and prompt_tail is not None:
            thinking = self.thinking_after(prompt_tail)
        self._thinking = thinking
        self._space: list[str] = []

    @classmethod
    def thinking_after(cls, prompt_tail: str) -> bool | None:
        """Return whether a prompt that ends so has opened a block (True), closed one (False), or neither."""
        tail = prompt_tail.rstrip()
        for start, end in cls.pairs:
            if tail.endswith(start.rstrip()):
                return True
            if tail.endswith(end.rstrip()):
                return False
        return None

    def _parse(self) -> Step[None]:
        if self._thinking is False:
            yield from self._cursor.until(Markers(), self._answer)
            return
        starts = Markers(*(start for start, _ in self.pairs))
        is_open = self.is_opened_by_default if self._thinking is None else self._thinking
        space = yield from self._cursor.space()
        start = yield from self._cursor.take(*starts.literals)
        if not start and not is_open:
            if space:
                self._answer(space)
            start = yield from self._read_answer(starts)
        while start or is_open:
            yield from self._read_thinking(start)
            is_open = False
            start = yield from self._read_answer(starts)

    def _read_answer(self, starts: Markers) -> Step[str]:
        """Read the answer up to the start of another block, if the format has such."""
        return (yield from self._cursor.until(starts if self.reopens else Markers(), self._answer))

    def _read_thinking(self, start: str) -> Step[None]:
        """Read a block behind `start` ("" if the prompt opened it), and its end."""
        ends = [end for opening, end in self.pairs if not start or opening == start]
        yield from self._cursor.space()
        end = yield from self._cursor.until(Markers(*ends, *self.implicit_ends), self._think)
        if not end:
            self._flush_space()
        self._space = []
        if end in self.implicit_ends:
            if end:
                self._answer(end)
        else:
            yield from self._cursor.space()

    def _think(self, piece: str) -> None:
        """Show `piece`; white space waits, for before the closing tag it is dropped."""
        text = piece.rstrip()
        if text:
            self._flush_space()
            self._emit(ReasoningDelta(text))
        if len(text) < len(piece):
            self._space.append(piece[len(text) :])

    def _flush_space(self) -> None:
        if self._space:
            self._emit(ReasoningDelta("".join(self._space)))
            self._space = []

    def _answer(self, piece: str) -> None:
        self._emit(TextDelta(piece))
