"""What a parser says: five small events, the only vocabulary between a model's text and an answer.

It knows nothing of formats, HTTP or tokens. The structs are tagged, so a list of events crosses a process
as msgpack or JSON and comes back as the same classes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

import msgspec


class TextDelta(msgspec.Struct, frozen=True, tag="text"):
    """A further piece of the answer that the user reads."""

    text: str


class ReasoningDelta(msgspec.Struct, frozen=True, tag="reasoning"):
    """A further piece of the model's thinking."""

    text: str


class ToolCallStart(msgspec.Struct, frozen=True, tag="tool_call_start"):
    """A call begins; `index` counts the calls of one answer from 0, `id` is unique among them."""

    index: int
    id: str
    name: str


class ToolCallDelta(msgspec.Struct, frozen=True, tag="tool_call_delta"):
    """A further piece of the JSON text of a call's arguments."""

    index: int
    arguments: str


class ToolCallEnd(msgspec.Struct, frozen=True, tag="tool_call_end"):
    """The call is over. A call that the text ended in has no such event."""

    index: int


ParserEvent: TypeAlias = TextDelta | ReasoningDelta | ToolCallStart | ToolCallDelta | ToolCallEnd


def join_events(events: Iterable[ParserEvent]) -> list[ParserEvent]:
    """Return the events with neighbouring deltas of one kind (and one call) joined into one."""
    joined: list[ParserEvent] = []
    pieces: list[str] = []
    head: TextDelta | ReasoningDelta | ToolCallDelta | None = None
    for event in events:
        if head is not None and not _continues(head, event):
            joined.append(_with_text(head, "".join(pieces)))
            head = None
        if isinstance(event, ToolCallStart | ToolCallEnd):
            joined.append(event)
            continue
        if head is None:
            head, pieces = event, []
        pieces.append(event.arguments if isinstance(event, ToolCallDelta) else event.text)
    if head is not None:
        joined.append(_with_text(head, "".join(pieces)))
    return joined


def _continues(head: TextDelta | ReasoningDelta | ToolCallDelta, event: ParserEvent) -> bool:
    if isinstance(head, ToolCallDelta):
        return isinstance(event, ToolCallDelta) and event.index == head.index
    return type(event) is type(head)


def _with_text(head: TextDelta | ReasoningDelta | ToolCallDelta, text: str) -> ParserEvent:
    if isinstance(head, ToolCallDelta):
        return ToolCallDelta(head.index, text)
    return type(head)(text)
