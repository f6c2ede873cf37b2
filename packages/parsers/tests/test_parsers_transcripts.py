"""Transcripts of every format: what the model wrote, and what has to come out, however the text is cut."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import parsers
import pytest
from parsers import Answer, ParserEvent, ToolCallDelta, ToolCallEnd, ToolCallStart, collect, join_events

_DATA: dict[str, Any] = json.loads(Path(__file__).with_name("transcripts.json").read_text(encoding="utf-8"))
_TRANSCRIPTS: list[dict[str, Any]] = _DATA["transcripts"]
_DELTA_LENS = (1, 2, 3, 5, 11, 23)


def _read(transcript: dict[str, Any], pieces: list[str]) -> list[ParserEvent]:
    tools = [
        {"type": "function", "function": {"name": name, "parameters": _DATA["tools"][name]}}
        for name in transcript["tools"]
    ]
    tool = parsers.tool.create(transcript["tool"], tools=tools) if "tool" in transcript else None
    reasoning = None
    if "reasoning" in transcript:
        reasoning = parsers.reasoning.create(
            transcript["reasoning"],
            thinking=transcript.get("thinking"),
            prompt_tail=transcript.get("prompt_tail"),
        )
    parser = parsers.compose(reasoning, tool)
    assert parser is not None
    events = [event for piece in pieces for event in parser.feed(piece)]
    return events + parser.finish(transcript.get("finish_reason", "stop"))


def _cuttings(transcript: dict[str, Any]) -> dict[str, list[str]]:
    text = transcript["text"]
    cuttings = {"whole": [text]}
    if "chunks" in transcript:
        assert "".join(transcript["chunks"]) == text
        cuttings["chunks"] = transcript["chunks"]
    for length in _DELTA_LENS:
        cuttings[f"deltas of {length}"] = [text[i : i + length] for i in range(0, len(text), length)]
    return cuttings


def _without_ids(events: list[ParserEvent]) -> list[ParserEvent]:
    return join_events(
        ToolCallStart(event.index, "", event.name) if isinstance(event, ToolCallStart) else event
        for event in events
    )


@pytest.mark.parametrize("transcript", _TRANSCRIPTS, ids=lambda transcript: transcript["id"])
def test_transcript_is_read_as_expected_however_it_is_cut(transcript: dict[str, Any]) -> None:
    whole = _without_ids(_read(transcript, [transcript["text"]]))
    for cutting, pieces in _cuttings(transcript).items():
        events = _read(transcript, pieces)
        assert _without_ids(events) == whole, cutting
        _check_protocol(events)
        _check_answer(collect(events), transcript["expect"])


@pytest.mark.parametrize("transcript", _TRANSCRIPTS, ids=lambda transcript: transcript["id"])
def test_transcript_cut_anywhere_by_the_token_limit_is_read_alike(
    transcript: dict[str, Any],
) -> None:
    """A text that ends early is read alike in both modes, and shows no markup that the whole does not."""
    text = transcript["text"]
    full = collect(_read(transcript, [text]))
    markers = parsers.tool.find(transcript["tool"]).markers if "tool" in transcript else ()
    for length in range(0, len(text), 7):
        early = {**transcript, "text": text[:length], "finish_reason": "length"}
        whole = _without_ids(_read(early, [early["text"]]))
        streamed = _read(early, list(early["text"]))
        assert _without_ids(streamed) == whole
        _check_protocol(streamed)
        shown = collect(streamed).text
        assert [marker for marker in markers if marker in shown and marker not in full.text] == []


def _check_protocol(events: list[ParserEvent]) -> None:
    started = ended = 0
    ids = set()
    for event in events:
        if isinstance(event, ToolCallStart):
            assert event.index == started
            assert event.id
            assert event.name
            ids.add(event.id)
            started += 1
        elif isinstance(event, ToolCallDelta):
            assert event.index == started - 1
            assert event.arguments
            assert ended < started
        elif isinstance(event, ToolCallEnd):
            assert event.index == started - 1
            ended += 1
            assert ended <= started
        else:
            assert event.text
    assert len(ids) == started


def _check_answer(answer: Answer, expect: dict[str, Any]) -> None:
    if expect["content"] != {"any": True}:
        assert (answer.text.strip() or None) == expect["content"]
    assert (answer.reasoning.strip() or None) == expect["reasoning"]
    if expect["calls"] == "any_valid_json":
        assert all(isinstance(json.loads(call.arguments), dict) for call in answer.calls)
    elif expect["calls"] == "any_partial":
        assert "<" not in answer.text
        assert [call.is_complete for call in answer.calls] == [False]
    else:
        _check_calls(answer, expect)
    for shown in expect.get("shown_without", ()):
        assert shown not in answer.text + answer.reasoning
    for raw in expect.get("raw_without", ()):
        assert all(raw not in call.arguments for call in answer.calls)
    if "ids" in expect:
        assert [call.id for call in answer.calls] == expect["ids"]
    if "ids_alphanumeric" in expect:
        assert all(len(call.id) == expect["ids_alphanumeric"] and call.id.isalnum() for call in answer.calls)


def _check_calls(answer: Answer, expect: dict[str, Any]) -> None:
    assert [call.name for call in answer.calls] == [name for name, _ in expect["calls"]]
    for position, (call, (_, arguments)) in enumerate(zip(answer.calls, expect["calls"], strict=True)):
        if arguments is None:
            assert call.arguments == expect["partial"][position]
        else:
            assert call.is_complete
            assert json.loads(call.arguments) == arguments
    assert ("partial" in expect) == any(arguments is None for _, arguments in expect["calls"])


def test_every_format_has_a_transcript() -> None:
    tools = {parsers.tool.find(t["tool"]) for t in _TRANSCRIPTS if "tool" in t}
    assert tools == {parsers.tool.find(name) for name in parsers.tool.names()}
    reasoning = {parsers.reasoning.find(t["reasoning"]) for t in _TRANSCRIPTS if "reasoning" in t}
    assert reasoning == {parsers.reasoning.find(name) for name in parsers.reasoning.names()}
