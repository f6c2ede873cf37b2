"""Calls in a section of special tokens: section begin, (call begin, name, JSON, call end)*, section end.

Once a section holds a call its tokens are markup wherever they come, and anything else between them is text.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from parsers.block_parser import BlockParser
from parsers.cursor import Step
from parsers.scanner import Markers


class SectionParser(BlockParser):
    """Reads sections; subclasses read one call between its begin and its end."""

    section_open: ClassVar[str]
    section_close: ClassVar[str]
    call_open: ClassVar[str]
    call_close: ClassVar[str]

    def _read_block(self, opener: str) -> Step[None]:
        if opener == self.section_open:
            yield from self._cursor.space()
            yield from self._cursor.expect(self.call_open)
        markers = Markers(self.call_open, self.section_close)
        is_open = True
        while is_open:
            yield from self._cursor.space()
            yield from self._read_call()
            yield from self._cursor.space()
            yield from self._cursor.accept(self.call_close)
            self._cursor.end_record()
            marker = yield from self._cursor.until(markers, self._text)
            is_open = marker == self.call_open
            self._cursor.start_record(marker)

    @abstractmethod
    def _read_call(self) -> Step[None]:
        """Read one call, and its end token if that is what stops the arguments."""
