"""Phi-4-mini calls: `functools[{"name": ..., "arguments": {...}}]`."""

from __future__ import annotations

from parsers.cursor import Step
from parsers.json_calls import JsonCallParser


class Phi4MiniJsonToolParser(JsonCallParser):
    """Reads a JSON list behind the word `functools`."""

    aliases = ("phi4", "phi4_mini")
    openers = ("functools",)
    markers = openers

    def _read_block(self, opener: str) -> Step[None]:
        yield from self._cursor.expect("[")
        yield from self._read_calls("[", is_bare=False)
