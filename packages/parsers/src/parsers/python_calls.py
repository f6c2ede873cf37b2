"""Calls written as Python: `[f(a=1), g()]`, with or without markers around.

A call comes out when its closing parenthesis does, since half a literal cannot be judged; a call whose
arguments are not literals is text.
"""

from __future__ import annotations

from typing import ClassVar

from parsers.block_parser import BlockParser
from parsers.cursor import Mismatch, Step
from parsers.pythonic import read_arguments


class PythonCallParser(BlockParser):
    """Reads a bracketed list of calls. Bare, it must stand at the start of a line."""

    openers: ClassVar[tuple[str, ...]] = ("[",)
    #: What may stand behind a list that came with a marker.
    closer: ClassVar[str] = ""

    def _read_block(self, opener: str) -> Step[None]:
        if opener == "[":
            if not self._is_line_start:
                raise Mismatch
            yield from self._read_list(is_bare=True)
            return
        yield from self._cursor.space()
        yield from self._cursor.expect("[")
        yield from self._read_list(is_bare=False)
        yield from self._cursor.space()
        yield from self._cursor.expect(self.closer)

    def _is_prose(self, opener: str, num_calls: int) -> bool:
        return opener == "[" and num_calls == self._num_calls

    def _read_list(self, is_bare: bool) -> Step[None]:
        while True:
            yield from self._read_call(is_bare)
            yield from self._cursor.space()
            if (yield from self._cursor.expect(",", "]")) == "]":
                return

    def _read_call(self, is_bare: bool) -> Step[None]:
        yield from self._cursor.space()
        name = yield from self._cursor.word("(")
        if is_bare and not self._is_known(name):
            raise Mismatch
        yield from self._cursor.expect("(")
        arguments = yield from read_arguments(self._cursor)
        self._whole_call(name, arguments)
