"""OpenAI's harmony format: a run of messages, each with a channel and perhaps a recipient.

    <|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>commentary to=functions.f
    <|constrain|>json <|message|>{...}<|call|>

`analysis` is reasoning, a message with a recipient is a call, everything else is for the user. The format
carries reasoning and calls in one, so the same parser serves both option groups and stands alone in a
pipeline.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from parsers.cursor import Mismatch, Sink, Step, Truncated
from parsers.events import ReasoningDelta
from parsers.scanner import Markers
from parsers.tool_parser import ToolParser
from parsers.tool_spec import ToolLike

_MAX_HEADER_LEN = 256
_START, _CHANNEL, _MESSAGE, _CONSTRAIN = "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>"
_ENDS = ("<|end|>", "<|call|>", "<|return|>")
_OPENERS = Markers(_START, _CHANNEL)
_BODY_ENDS = Markers(*_ENDS, _START, _CHANNEL)


class Header(NamedTuple):
    """What stands before a message: `recipient` is "" for one to the user."""

    channel: str
    recipient: str


class HarmonyParser(ToolParser):
    """Reads a whole answer in harmony."""

    markers = (_START, _CHANNEL, _CONSTRAIN, _MESSAGE, *_ENDS)
    reasoning_ends = (f"{_CHANNEL}final{_MESSAGE}",)
    reads_everything = True

    def __init__(
        self,
        tools: Iterable[ToolLike] = (),
        *,
        is_thinking: bool = False,
        make_id: Callable[[], str] | None = None,
        marker_ids: Mapping[str, int] | None = None,
    ) -> None:
        """Make a parser for one answer.

        Args:
            tools: what the model may call.
            is_thinking: whether the prompt has opened an analysis message.
            make_id: gives the ids of calls; random by default.
            marker_ids: see `FormatParser`.

        Raises:
            ParserError: if a tool has no name.
        """
        super().__init__(tools, make_id=make_id, marker_ids=marker_ids)
        self._is_thinking = is_thinking
        self._shown: set[str] = set()

    def _parse(self) -> Step[None]:
        marker = (yield from self._read_body(Header("analysis", ""))) if self._is_thinking else ""
        while True:
            if marker not in _OPENERS.literals:
                marker = yield from self._cursor.until(_OPENERS, self._text)
            if not marker:
                break
            header = yield from self._try_header(marker)
            marker = (yield from self._read_body(header)) if header else ""
        self._end_text()

    def _try_header(self, opener: str) -> Step[Header | None]:
        self._cursor.start_record(opener)
        try:
            text = yield from self._cursor.bounded(_MESSAGE, _MAX_HEADER_LEN)
            header = _read_header(opener + text)
        except Mismatch:
            self._text(self._cursor.end_record())
            return None
        except Truncated:
            record = self._cursor.end_record()
            if not self._is_cut:
                self._text(record)
            return None
        self._cursor.end_record()
        return header

    def _read_body(self, header: Header) -> Step[str]:
        """Read a message's body and return the marker that ended it, "" at the end of the text."""
        if header.recipient:
            return (yield from self._read_call(header.recipient))
        if header.channel == "analysis":
            return (yield from self._cursor.until(_BODY_ENDS, self._separated("analysis", self._reasoning)))
        return (yield from self._cursor.until(_BODY_ENDS, self._separated("final", self._text)))

    def _read_call(self, name: str) -> Step[str]:
        try:
            yield from self._cursor.space()
            marker = yield from self._read_json_arguments(name, *_BODY_ENDS.literals)
        except Mismatch:
            # The body of a tool that takes no JSON, such as code for an interpreter.
            self._start_call(name)
            marker = yield from self._cursor.until(_BODY_ENDS, self._arguments)
            if marker:
                self._end_call()
        except Truncated:
            return ""
        self._cursor.end_record()
        return marker or (yield from self._cursor.until(_BODY_ENDS, self._text))

    def _reasoning(self, piece: str) -> None:
        self._emit(ReasoningDelta(piece))

    def _separated(self, kind: str, sink: Sink) -> Sink:
        """Return `sink` with a line break before the message, if it is not the first of its kind."""
        waiting = ["\n"] if kind in self._shown else []

        def take(piece: str) -> None:
            self._shown.add(kind)
            if waiting:
                sink(waiting.pop())
            sink(piece)

        return take


def _read_header(text: str) -> Header:
    """Read `<|start|>assistant to=functions.f<|channel|>commentary <|constrain|>json`, in whatever order.

    Raises:
        Mismatch: a word in it is none of a header's.
    """
    words = (
        text.replace(_CONSTRAIN, " ").replace(_CHANNEL, f" {_CHANNEL}").replace(_START, f" {_START}").split()
    )
    channel = recipient = ""
    for word in words:
        bare = word.removeprefix(_START).removeprefix(_CHANNEL).removeprefix("to=")
        if bare and not bare.replace("_", "").replace(".", "").replace("-", "").isalnum():
            raise Mismatch
        if word.startswith(_CHANNEL):
            channel = bare
        elif word.startswith("to="):
            recipient = bare.removeprefix("functions.")
    return Header(channel, recipient)
