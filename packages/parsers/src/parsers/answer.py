"""A whole answer, gathered from its events: what a response that is not streamed is made of."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from parsers.events import ParserEvent, ReasoningDelta, TextDelta, ToolCallDelta, ToolCallStart


class Call(msgspec.Struct):
    """One call. `arguments` is JSON text, the beginning of one where `is_complete` is false."""

    id: str
    name: str
    arguments: str = ""
    is_complete: bool = False


class Answer(msgspec.Struct):
    """The joined texts ("" for none) and the calls in order."""

    text: str = ""
    reasoning: str = ""
    calls: list[Call] = []


def collect(events: Iterable[ParserEvent]) -> Answer:
    """Return the answer that `events` make up."""
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[Call] = []
    arguments: list[list[str]] = []
    for event in events:
        if isinstance(event, TextDelta):
            texts.append(event.text)
        elif isinstance(event, ReasoningDelta):
            thoughts.append(event.text)
        elif isinstance(event, ToolCallStart):
            calls.append(Call(event.id, event.name))
            arguments.append([])
        elif isinstance(event, ToolCallDelta):
            arguments[event.index].append(event.arguments)
        else:
            calls[event.index].is_complete = True
    for call, pieces in zip(calls, arguments, strict=True):
        call.arguments = "".join(pieces)
    return Answer("".join(texts), "".join(thoughts), calls)
