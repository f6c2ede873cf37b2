"""OLMo 3 calls: Python calls, one a line, between `<function_calls>` tags."""

from __future__ import annotations

from parsers.cursor import Step
from parsers.python_calls import PythonCallParser


class Olmo3ToolParser(PythonCallParser):
    """Reads Python calls, one a line or in a list."""

    openers = ("<function_calls>",)
    closer = "</function_calls>"
    markers = (*openers, closer)

    def _read_block(self, opener: str) -> Step[None]:
        yield from self._cursor.space()
        if (yield from self._cursor.accept("[")):
            yield from self._read_list(is_bare=False)
            yield from self._cursor.space()
            yield from self._cursor.expect(self.closer)
            return
        while not (yield from self._cursor.accept(self.closer)):
            yield from self._read_call(is_bare=False)
            yield from self._cursor.space()
