"""Finding markers in text that is still arriving.

A `Markers` set answers one question about a piece of text: where does the first marker stand, or, if there
is none yet, from where on could one still be growing? What lies before that place may be passed on; what
lies after it must wait, so that half a marker is never shown. It keeps no text itself, and knows no format.
"""

from __future__ import annotations

from typing import NamedTuple


class Found(NamedTuple):
    """`position` is where `marker` starts; with no marker, where the text that has to wait starts."""

    position: int
    marker: str


class Markers:
    """A fixed set of literal strings to look for; of several at one place the longest wins."""

    __slots__ = ("_by_first", "literals")

    def __init__(self, *literals: str) -> None:
        self.literals = literals
        self._by_first: dict[str, list[str]] = {}
        for literal in sorted(set(literals), key=len, reverse=True):
            self._by_first.setdefault(literal[0], []).append(literal)

    def find(self, text: str, start: int, final: bool) -> Found:
        """Return the first marker at or after `start`.

        Args:
            text: what is there so far.
            start: where to begin.
            final: no more text will come, so that nothing has to wait.
        """
        places = {first: text.find(first, start) for first in self._by_first}
        while True:
            position = min((place for place in places.values() if place >= 0), default=-1)
            if position < 0:
                return Found(len(text), "")
            first = text[position]
            marker = match_at(self._by_first[first], text, position, final)
            if marker is None or marker:
                return Found(position, marker or "")
            places[first] = text.find(first, position + 1)


def match_at(literals: list[str], text: str, position: int, final: bool) -> str | None:
    """Return the longest of `literals` that stands at `position`, "" if none can, None if it is too early.

    Args:
        literals: longest first.
        text: what is there so far.
        position: where the literal has to start.
        final: no more text will come.
    """
    left = len(text) - position
    for literal in literals:
        if len(literal) <= left:
            if text.startswith(literal, position):
                return literal
        elif not final and literal.startswith(text[position:]):
            return None
    return ""
