"""Reading text that is still arriving, as if it were all there.

Every parser is a generator that reads through a `Cursor`. A read that needs more text than has come yields;
`push` brings more and the generator goes on where it stood. So a format is written once, as a plain top-down
reader, and how the text was cut cannot change what it reads: each read either waits without consuming
anything or consumes the same characters whatever the pieces were. The unread text stays shorter than the
longest bounded read plus one piece, and nothing is read twice, so the cost of a piece does not depend on
what came before it.

It knows no format and emits no events.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from typing import TypeAlias, TypeVar

from parsers.scanner import Markers, match_at

T = TypeVar("T")
Step: TypeAlias = Generator[None, None, T]
Sink: TypeAlias = Callable[[str], object]

# Function names and parameter names are short; a longer run of name characters is not a name.
MAX_NAME_LEN = 256
_NAME_PUNCTUATION = "_-.:/"


class Mismatch(Exception):
    """What follows is not what the format says. The offending character is still unread."""


class Truncated(Exception):
    """The text ended in the middle of something. Everything is read."""


# A long piece is read in slices, so that looking ahead never costs more than one slice.
SLICE_LEN = 4096


def read_text(text: str, read: Callable[[Cursor], Step[T]]) -> T | None:
    """Return what `read` makes of the whole of `text`; None if that fails or something follows it."""
    cursor = Cursor()
    reading = read(cursor)
    try:
        for start in range(0, len(text), SLICE_LEN):
            cursor.push(text[start : start + SLICE_LEN])
            next(reading)
        cursor.close()
        next(reading)
    except StopIteration as done:
        rest = cursor.advance(cursor.num_unread) + text[start + SLICE_LEN :]
        return done.value if not rest.strip() else None
    except (Mismatch, Truncated):
        return None
    raise AssertionError("a reader waited for text after the end")


class Cursor:
    """The unread text, and on demand a record of what was read (to give it back if it was no call)."""

    __slots__ = ("_buffer", "_credits", "_is_final", "_position", "_record")

    def __init__(self) -> None:
        self._buffer = ""
        self._position = 0
        self._is_final = False
        self._record: list[str] | None = None
        self._credits: dict[str, int] | None = None

    @property
    def num_unread(self) -> int:
        """How many characters wait to be read."""
        return len(self._buffer) - self._position

    def push(self, text: str) -> None:
        """Append text. Only between resumptions of the reading generator."""
        self._buffer = self._buffer[self._position :] + text
        self._position = 0

    def close(self) -> None:
        """Say that no more text will come."""
        self._is_final = True

    # -- marker tokens ---------------------------------------------------------------------------------------

    def credit(self, seen: Mapping[str, int] | None) -> None:
        """Let `until` take a marker of `seen` only as often as its token came; None lifts that.

        A marker that the model spelled with ordinary tokens is prose.
        """
        if seen is None:
            self._credits = None
            return
        held = self._credits or {}
        self._credits = {marker: held.get(marker, 0) + count for marker, count in seen.items()}

    def _is_genuine(self, marker: str) -> bool:
        if self._credits is None or marker not in self._credits:
            return True
        if self._credits[marker] == 0:
            return False
        self._credits[marker] -= 1
        return True

    # -- the record ------------------------------------------------------------------------------------------

    def start_record(self, already_read: str = "") -> None:
        """Begin to remember what is read, `already_read` first."""
        self._record = [already_read]

    def end_record(self) -> str:
        """Stop remembering and return what was read since `start_record`."""
        record, self._record = self._record, None
        return "".join(record or ())

    # -- reads that never wait -------------------------------------------------------------------------------

    def advance(self, count: int) -> str:
        """Read `count` characters that are known to be there."""
        piece = self._buffer[self._position : self._position + count]
        self._position += count
        if self._record is not None:
            self._record.append(piece)
        return piece

    def run(self, stops: str) -> str:
        """Read what is there up to the first of the characters `stops`."""
        end = len(self._buffer)
        for stop in stops:
            place = self._buffer.find(stop, self._position, end)
            if place >= 0:
                end = place
        return self.advance(end - self._position)

    # -- reads that may wait ---------------------------------------------------------------------------------

    def peek(self) -> Step[str]:
        """Return the next character unread, "" at the end."""
        while self._position >= len(self._buffer):
            if self._is_final:
                return ""
            yield
        return self._buffer[self._position]

    def need(self) -> Step[str]:
        """Return the next character unread.

        Raises:
            Truncated: at the end.
        """
        char = yield from self.peek()
        if not char:
            raise Truncated
        return char

    def look(self, count: int) -> Step[str]:
        """Return the next `count` characters unread, fewer only at the end."""
        while self.num_unread < count and not self._is_final:
            yield
        return self._buffer[self._position : self._position + count]

    def space(self) -> Step[str]:
        """Read white space and return it."""
        pieces = []
        while (char := (yield from self.peek())) and char.isspace():
            pieces.append(self.advance(1))
        return "".join(pieces)

    def take(self, *literals: str) -> Step[str]:
        """Read the longest of `literals` that comes next whole and return it; "" if none does."""
        ordered = sorted(literals, key=len, reverse=True)
        while (literal := match_at(ordered, self._buffer, self._position, self._is_final)) is None:
            yield
        return self.advance(len(literal))

    def accept(self, *literals: str) -> Step[str]:
        """Read the longest of `literals` that comes next and return it; "" if none does.

        Raises:
            Truncated: if the text ends inside one.
        """
        literal = yield from self.take(*literals)
        if not literal and self._ends_inside(literals):
            self.advance(self.num_unread)
            raise Truncated
        return literal

    def expect(self, *literals: str) -> Step[str]:
        """Read the longest of `literals` that comes next and return it.

        Raises:
            Mismatch: if none does.
            Truncated: if the text ends inside one.
        """
        literal = yield from self.accept(*literals)
        if not literal:
            raise Mismatch
        return literal

    def word(self, *stops: str, extra: str = "") -> Step[str]:
        """Read a name up to the first of `stops`, and leave the stop unread.

        Args:
            stops: none of them may start with a name character.
            extra: characters allowed beside letters, digits and `_-.:/`.

        Raises:
            Mismatch: no name, or something else behind it; nothing is read.
            Truncated: the text ended first.
        """
        end = self._position
        while True:
            while end < len(self._buffer) and self._is_name_char(end, extra):
                end += 1
            if end - self._position > MAX_NAME_LEN:
                raise Mismatch
            if end == len(self._buffer):
                if self._is_final:
                    self.advance(self.num_unread)
                    raise Truncated
            else:
                stop = match_at(sorted(stops, key=len, reverse=True), self._buffer, end, self._is_final)
                if stop:
                    break
                if stop is not None:
                    if self._is_final and any(s.startswith(self._buffer[end:]) for s in stops):
                        self.advance(self.num_unread)
                        raise Truncated
                    raise Mismatch
            # More text moves the unread part to the front of the buffer.
            end -= self._position
            yield
            end += self._position
        if end == self._position:
            raise Mismatch
        return self.advance(end - self._position)

    def bounded(self, stop: str, limit: int) -> Step[str]:
        """Read up to and with `stop`, on this line and in `limit` characters; return what came before.

        Raises:
            Mismatch: the line is longer, or ends first; nothing is read.
            Truncated: the text ended first.
        """
        while True:
            end = self._position + limit
            place = self._buffer.find(stop, self._position, end + len(stop))
            newline = self._buffer.find("\n", self._position, place if place >= 0 else end)
            if newline >= 0 or (place < 0 and self.num_unread >= limit + len(stop)):
                raise Mismatch
            if place >= 0:
                text = self.advance(place - self._position)
                self.advance(len(stop))
                return text
            if self._is_final:
                self.advance(self.num_unread)
                raise Truncated
            yield

    def until(self, markers: Markers, sink: Sink) -> Step[str]:
        """Hand text to `sink` up to the first of `markers`, read that marker, return it; "" at the end."""
        while True:
            found = markers.find(self._buffer, self._position, self._is_final)
            if found.position > self._position:
                sink(self.advance(found.position - self._position))
            if found.marker:
                marker = self.advance(len(found.marker))
                if self._is_genuine(marker):
                    return marker
                sink(marker)
            elif self._is_final:
                return ""
            else:
                yield

    def _is_name_char(self, place: int, extra: str) -> bool:
        char = self._buffer[place]
        return char.isalnum() or char in _NAME_PUNCTUATION or char in extra

    def _ends_inside(self, literals: Iterable[str]) -> bool:
        """Whether nothing more comes, and what is left could become one of `literals`."""
        longest = max((len(literal) for literal in literals), default=0)
        if not self._is_final or self.num_unread >= longest:
            return False
        rest = self._buffer[self._position :]
        return any(literal.startswith(rest) for literal in literals)
