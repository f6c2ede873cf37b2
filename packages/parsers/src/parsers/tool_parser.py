"""What all tool parsers share: the tools, and how text and calls become events.

White space before a call and between calls belongs to the markup, so text gives its white space out late. A
call is certain from `_start_call` on; its arguments then stream and cannot be taken back. How a format finds
its calls is not known here.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping

from parsers.base import FormatParser
from parsers.cursor import Mismatch, Step, Truncated
from parsers.events import TextDelta, ToolCallDelta, ToolCallEnd, ToolCallStart
from parsers.partial_json import read_value
from parsers.scanner import Markers
from parsers.tool_spec import ToolLike, read_tools


class ToolParser(FormatParser):
    """Reads answer text and calls. Subclasses read in `_parse`, and end it with `_end_text`."""

    def __init__(
        self,
        tools: Iterable[ToolLike] = (),
        *,
        make_id: Callable[[], str] | None = None,
        marker_ids: Mapping[str, int] | None = None,
    ) -> None:
        """Make a parser for one answer.

        Args:
            tools: what the model may call; types of bare text values come from their schemas.
            make_id: gives the ids of calls; random by default.
            marker_ids: see `FormatParser`.

        Raises:
            ParserError: if a tool has no name.
        """
        super().__init__(marker_ids=marker_ids)
        self._tools = read_tools(tools)
        self._make_id = make_id or self._random_id
        self._num_calls = 0
        self._used_ids: set[str] = set()
        self._space: list[str] = []
        self._is_line_start = True

    def _text(self, piece: str) -> None:
        """Show `piece`; white space waits until text follows it, for before a call it is dropped."""
        text = piece.rstrip()
        if text:
            self._emit(TextDelta("".join(self._space) + text))
            self._space = []
        if len(text) < len(piece):
            self._space.append(piece[len(text) :])
        self._is_line_start = self._ends_line(piece)

    def _end_text(self) -> None:
        if self._space and not self._num_calls:
            self._emit(TextDelta("".join(self._space)))
        self._space = []

    def _start_call(self, name: str, call_id: str | None = None) -> None:
        """Commit: from here on the call is certain, and nothing is recorded until `_end_call`."""
        self._cursor.end_record()
        self._space = []
        if not call_id or call_id in self._used_ids:
            call_id = self._make_id()
        self._used_ids.add(call_id)
        self._emit(ToolCallStart(self._num_calls, call_id, name))
        self._num_calls += 1

    def _arguments(self, piece: str) -> None:
        self._emit(ToolCallDelta(self._num_calls - 1, piece))

    def _end_call(self) -> None:
        """The call is over. What follows is recorded anew: it may be text after all."""
        self._emit(ToolCallEnd(self._num_calls - 1))
        self._cursor.start_record()
        self._is_line_start = True

    def _whole_call(self, name: str, arguments: str, call_id: str | None = None) -> None:
        """Emit a call that is known to its end."""
        self._start_call(name, call_id)
        self._arguments(arguments)
        self._end_call()

    def _read_json_arguments(self, name: str, *closers: str, call_id: str | None = None) -> Step[str]:
        """Read a whole call whose arguments are the JSON object that is next, or are left out.

        Args:
            name: of the function.
            closers: where the markup ends. If the model breaks its JSON when the call is already out, the
                rest up to here is passed on as the model wrote it: its mistake is shown, and no value is
                made up for it.
            call_id: where the model gives one.

        Returns:
            The closer, if it is already read.
        """
        if (yield from self._cursor.need()) == "{":
            self._start_call(name, call_id)
            closer = yield from self._stream_json(*closers)
            self._end_call()
            return closer
        closer = yield from self._cursor.expect(*closers)
        self._whole_call(name, "{}", call_id)
        return closer

    def _stream_json(self, *closers: str) -> Step[str]:
        try:
            yield from read_value(self._cursor, self._arguments)
        except Mismatch:
            closer = yield from self._cursor.until(Markers(*closers), self._arguments)
            if not closer:
                raise Truncated from None
            return closer
        return ""

    def _is_known(self, name: str) -> bool:
        """Whether the model was offered `name`; with no tools given, any name will do."""
        return not self._tools or name in self._tools

    @staticmethod
    def _random_id() -> str:
        return "call_" + uuid.uuid4().hex[:24]

    def _ends_line(self, piece: str) -> bool:
        tail = piece.rstrip(" \t")
        return tail.endswith("\n") if tail else self._is_line_start
