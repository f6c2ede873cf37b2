"""Text until a block of calls may begin, then the calls, or the text back.

A block is tried as calls. Until a call is certain everything read is recorded; if it turns out to be
something else it goes back to the user as text, and reading goes on at the character that did not fit, so
that no text is read twice. What stands in a block is not known here.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from parsers.cursor import Mismatch, Step, Truncated
from parsers.scanner import Markers
from parsers.tool_parser import ToolParser

# What may be left of a list of calls once the calls are out; alone it is no answer.
_SEPARATORS = " \t\r\n,;[]{}"


class BlockParser(ToolParser):
    """Reads blocks in a text. Subclasses say what opens a block and read it in `_read_block`."""

    #: What a block of calls starts with.
    openers: ClassVar[tuple[str, ...]]

    @abstractmethod
    def _read_block(self, opener: str) -> Step[None]:
        """Read what follows `opener`. On Mismatch and Truncated what is recorded goes back as text."""

    def _parse(self) -> Step[None]:
        markers = Markers(*self.openers)
        while opener := (yield from self._cursor.until(markers, self._text)):
            yield from self._try_block(opener)
        self._end_text()

    def _try_block(self, opener: str) -> Step[None]:
        self._cursor.start_record(opener)
        num_calls = self._num_calls
        try:
            yield from self._read_block(opener)
            self._cursor.end_record()
        except Mismatch:
            self._give_back(self._cursor.end_record(), num_calls)
        except Truncated:
            record = self._cursor.end_record()
            if not self._is_cut or self._is_prose(opener, num_calls):
                self._give_back(record, num_calls)

    def _give_back(self, record: str, num_calls: int) -> None:
        is_left_over = num_calls != self._num_calls and not record.strip(_SEPARATORS)
        if not (is_left_over and record.strip()):
            self._text(record)

    def _is_prose(self, opener: str, num_calls: int) -> bool:
        """Whether what a cut left unfinished is text rather than markup: for formats without a marker."""
        return False
