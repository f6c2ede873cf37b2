"""The contract of every parser: feed text, get events; finish, get the rest.

There is one code path. A whole answer is `feed(everything)` and `finish`; a stream is the same with smaller
pieces, and gives the same events up to how the deltas are cut. `FormatParser` turns a format, written as a
generator over a `Cursor`, into that contract; it knows nothing of any format.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import ClassVar

from parsers.cursor import SLICE_LEN, Cursor, Step
from parsers.events import ParserEvent, join_events

# With these the text was cut by something other than the model, so what is unfinished was going to go on.
_CUT_REASONS = frozenset({"length", "abort", "error"})


class ParserError(ValueError):
    """A parser was asked for, or given, something that the caller can mend."""


class Parser(ABC):
    """One answer being read. Owned by one request and used from one thread; made anew for each answer."""

    #: Other names of the format.
    aliases: ClassVar[tuple[str, ...]] = ()
    #: The strings that the format is written with, for whoever must keep them from being skipped as special
    #: tokens.
    markers: ClassVar[tuple[str, ...]] = ()
    #: What ends the thinking, for whoever lets a grammar begin behind it.
    reasoning_ends: ClassVar[tuple[str, ...]] = ()
    #: Whether the parser itself tells reasoning, answer and calls apart, so that it stands alone in a
    #: pipeline.
    reads_everything: ClassVar[bool] = False

    @property
    @abstractmethod
    def num_unread(self) -> int:
        """How many characters are held back until more text decides what they are."""

    @abstractmethod
    def feed(self, text: str, token_ids: Sequence[int] | None = None) -> list[ParserEvent]:
        """Return the events that `text` brings.

        Args:
            text: what came since the last call; may be empty.
            token_ids: the tokens behind it, needed only where the parser has `marker_ids`.

        Raises:
            ParserError: after `finish`.
        """

    @abstractmethod
    def finish(self, finish_reason: str | None = "stop") -> list[ParserEvent]:
        """Return the events that the end of the text brings.

        Args:
            finish_reason: why it ended. After "length", "abort" and "error" a call that had just begun is
                dropped and an open one stays open; after anything else unfinished markup is given back as
                text.

        Raises:
            ParserError: if called twice.
        """


class FormatParser(Parser):
    """A parser of one format. Subclasses write it as `_parse`, with `self._cursor` and `self._emit`."""

    def __init__(self, *, marker_ids: Mapping[str, int] | None = None) -> None:
        """Make a parser for one answer.

        Args:
            marker_ids: token ids of markers that are tokens of their own. With them, and with `token_ids`
                in `feed`, the same characters spelled by ordinary tokens are prose. Exact where a piece
                holds one token.
        """
        self._cursor = Cursor()
        self._events: list[ParserEvent] = []
        self._marker_of_id = {token_id: marker for marker, token_id in (marker_ids or {}).items()}
        self._finish_reason: str | None = None
        self._reading: Step[None] | None = None
        self._is_finished = False

    @property
    def num_unread(self) -> int:
        """See `Parser`."""
        return self._cursor.num_unread

    def feed(self, text: str, token_ids: Sequence[int] | None = None) -> list[ParserEvent]:
        """See `Parser`."""
        if self._is_finished:
            raise ParserError(f"feed({text[:40]!r}) after finish: make a new parser for each answer")
        if self._marker_of_id:
            self._cursor.credit(self._count_markers(token_ids))
        for start in range(0, len(text), SLICE_LEN):
            self._cursor.push(text[start : start + SLICE_LEN])
            self._resume()
        return self._take_events()

    def finish(self, finish_reason: str | None = "stop") -> list[ParserEvent]:
        """See `Parser`."""
        if self._is_finished:
            raise ParserError("finish() called twice: make a new parser for each answer")
        self._finish_reason = finish_reason
        self._is_finished = True
        self._cursor.close()
        self._resume()
        return self._take_events()

    @abstractmethod
    def _parse(self) -> Step[None]:
        """Read the whole answer from `self._cursor`. Must return only at the end of the text."""

    @property
    def _is_cut(self) -> bool:
        """At the end of the text: whether the model did not stop by itself."""
        return self._finish_reason in _CUT_REASONS

    def _emit(self, event: ParserEvent) -> None:
        self._events.append(event)

    def _resume(self) -> None:
        # The generator is made late, so that a subclass's constructor has run to its end.
        if self._reading is None:
            self._reading = self._parse()
        try:
            next(self._reading)
        except StopIteration:
            is_done = self._is_finished and not self._cursor.num_unread
            assert is_done, "a parser stopped before the text did"

    def _take_events(self) -> list[ParserEvent]:
        events, self._events = self._events, []
        return join_events(events)

    def _count_markers(self, token_ids: Sequence[int] | None) -> dict[str, int] | None:
        if token_ids is None:
            return None
        came = Counter(token_ids)
        return {marker: came[token_id] for token_id, marker in self._marker_of_id.items()}
