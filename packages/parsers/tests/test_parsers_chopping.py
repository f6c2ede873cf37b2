"""Properties of every parser on arbitrary mixtures of markup, broken markup and prose.

Cutting the text otherwise changes nothing; nothing is lost or doubled; the events keep their order; and the
work for a piece does not grow with the text before it.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import parsers
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from parsers import (
    Parser,
    ParserEvent,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
    collect,
    join_events,
)

_DATA: dict[str, Any] = json.loads(Path(__file__).with_name("transcripts.json").read_text(encoding="utf-8"))
_TOOLS = [{"function": {"name": name, "parameters": schema}} for name, schema in _DATA["tools"].items()]
_REASONS = ("stop", "length")
_PIPELINES = (("qwen3", "hermes"), ("qwen3", "qwen3_coder"), ("kimi_k2", "kimi_k2"), ("mistral", "mistral"))

# Formats that write arguments in another notation than JSON, and so never pass broken JSON on.
_REWRITTEN = frozenset(
    [
        "deepseek_v32",
        "deepseek_v4",
        "functiongemma",
        "gemma4",
        "glm45",
        "lfm2",
        "llama4_pythonic",
        "minimax_m2",
        "olmo3",
        "pythonic",
        "qwen3_coder",
        "seed_oss",
    ]
)


def _make_tool(name: str) -> Parser:
    counter = itertools.count()
    tools = _TOOLS[:1] if name == "named" else _TOOLS
    return parsers.tool.create(name, tools=tools, make_id=lambda: f"id{next(counter)}")


def _make_pipeline(reasoning: str, tool: str) -> Parser:
    parser = parsers.compose(parsers.reasoning.create(reasoning), _make_tool(tool))
    assert parser is not None
    return parser


def _makers() -> dict[str, Callable[[], Parser]]:
    makers: dict[str, Callable[[], Parser]] = {}
    for name in parsers.tool.names():
        makers[f"tool-{name}"] = lambda name=name: _make_tool(name)  # type: ignore[misc]
    for name in parsers.reasoning.names():
        makers[f"reasoning-{name}"] = lambda name=name: parsers.reasoning.create(name)  # type: ignore[misc]
        makers[f"opened-{name}"] = lambda name=name: parsers.reasoning.create(name, thinking=True)  # type: ignore[misc]
    for pair in _PIPELINES:
        makers["pipeline-" + "-".join(pair)] = lambda pair=pair: _make_pipeline(*pair)  # type: ignore[misc]
    return makers


_MAKERS = _makers()


def _texts_of(case: str) -> list[str]:
    """The transcripts of a format, or of both in a pipeline."""
    names = set(case.split("-", 1)[1].split("-"))
    found = []
    for transcript in _DATA["transcripts"]:
        classes = [transcript.get("tool"), transcript.get("reasoning")]
        if any(name is not None and _file_name(name) & names for name in classes):
            found.append(transcript["text"])
    assert found, case
    return found


def _file_name(name: str) -> set[str]:
    found = set()
    for group in (parsers.tool, parsers.reasoning):
        try:
            found.add(group.find(name).__module__.rpartition(".")[2])
        except parsers.ParserError:
            continue
    return found


_PROSE = [
    "word",
    " ",
    "\n",
    "\n\n",
    "a < b",
    "{",
    "}",
    "[",
    "]",
    '"',
    "'",
    "\\",
    "```",
    "name",
    ":",
    ",",
    "\u00fc\u6771",
]
_JSON = [
    '{"name": "ping", "arguments": {}}',
    '{"name":"run","parameters":{"cmd":"}"}}',
    '{"a": [1, tru',
    "ping(",
    "=1)",
    "{}",
]


def _pieces_of(case: str) -> st.SearchStrategy[str]:
    texts = st.sampled_from(_texts_of(case))
    cut = st.tuples(texts, st.integers(0, 400), st.integers(0, 400)).map(
        lambda t: t[0][min(t[1:]) : max(t[1:])]
    )
    return st.one_of(st.sampled_from(_PROSE), st.sampled_from(_JSON), texts, cut, cut)


def _generated(case: str) -> st.SearchStrategy[str]:
    return st.lists(_pieces_of(case), max_size=8).map("".join)


def _run(parser: Parser, pieces: list[str], reason: str) -> list[ParserEvent]:
    events = [event for piece in pieces for event in parser.feed(piece)]
    return events + parser.finish(reason)


def _comparable(events: list[ParserEvent]) -> list[ParserEvent]:
    # A reasoning parser has no say in the ids of calls, so they are random there.
    return join_events(
        ToolCallStart(event.index, "", event.name) if isinstance(event, ToolCallStart) else event
        for event in events
    )


def _cut(text: str, places: list[int]) -> list[str]:
    bounds = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    return [text[start:end] for start, end in itertools.pairwise(bounds)]


_SETTINGS = settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@pytest.mark.parametrize("case", _MAKERS)
def test_any_cutting_gives_the_same_events(case: str) -> None:
    @_SETTINGS
    @given(_generated(case), st.lists(st.integers(0, 2000), max_size=12), st.sampled_from(_REASONS))
    def check(text: str, places: list[int], reason: str) -> None:
        whole = _comparable(_run(_MAKERS[case](), [text], reason))
        assert _comparable(_run(_MAKERS[case](), _cut(text, places), reason)) == whole
        assert _comparable(_run(_MAKERS[case](), list(text), reason)) == whole

    check()


@pytest.mark.parametrize("case", _MAKERS)
def test_nothing_is_lost_or_doubled(case: str) -> None:
    """Numbered words between pieces each come out once, and a text without calls comes out as it was."""

    @_SETTINGS
    @given(st.lists(_pieces_of(case), max_size=6))
    def check(pieces: list[str]) -> None:
        words = [f"\u00ab{number}\u00bb" for number in range(len(pieces) + 1)]
        text = words[0] + "".join(piece + word for piece, word in zip(pieces, words[1:], strict=True))
        events = _run(_MAKERS[case](), [text], "stop")
        answer = collect(events)
        shown = "".join(
            [answer.text, answer.reasoning, *(call.name + call.arguments for call in answer.calls)]
        )
        for word in words:
            assert shown.count(word) == 1, (word, events)
        if case.startswith("tool-") and case != "tool-openai" and not answer.calls:
            assert answer.text == text

    check()


@pytest.mark.parametrize("case", _MAKERS)
def test_events_keep_their_order(case: str) -> None:
    @_SETTINGS
    @given(_generated(case), st.sampled_from(_REASONS))
    def check(text: str, reason: str) -> None:
        events = _run(_MAKERS[case](), list(text), reason)
        open_call = -1
        num_calls = 0
        ids = set()
        for event in events:
            match event:
                case TextDelta(piece) | ReasoningDelta(piece):
                    assert piece
                case ToolCallStart(index, call_id, name):
                    assert index == num_calls
                    assert call_id
                    assert name
                    ids.add(call_id)
                    num_calls += 1
                    open_call = index
                case ToolCallDelta(index, arguments):
                    assert index == open_call
                    assert arguments
                case ToolCallEnd(index):
                    assert index == open_call
                    open_call = -1
        assert len(ids) == num_calls
        if case.partition("-")[2] in _REWRITTEN and case.startswith("tool-"):
            for call in collect(events).calls:
                if call.is_complete:
                    assert isinstance(json.loads(call.arguments), dict)

    check()


# -- cost ------------------------------------------------------------------------------------------


def _count_lines(parser: Parser, text: str, length: int) -> tuple[int, int]:
    """Return how many lines of our code ran, and the most characters ever held back."""
    lines = 0
    held = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal lines
        if event == "line":
            lines += 1
        return trace if "parsers" in frame.f_code.co_filename else None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        for start in range(0, len(text), length):
            parser.feed(text[start : start + length])
            held = max(held, parser.num_unread)
        parser.finish("stop")
    finally:
        sys.settrace(before)
    return lines, held


def _hard_texts(case: str) -> list[str]:
    """Units whose repetition would be quadratic for a parser that looks back."""
    texts = _texts_of(case)
    openers = {text[:end] for text in texts for end in (5, 20, 60)}
    return [*sorted(openers), max(texts, key=len), "<", "[", '{"', " \n", 'a "'][:12]


@pytest.mark.parametrize("case", _MAKERS)
@pytest.mark.parametrize("length", [1, 50_000], ids=["character by character", "whole"])
def test_cost_grows_with_the_text_and_not_faster(case: str, length: int) -> None:
    for unit in _hard_texts(case):
        times = max(1, (600 if length == 1 else 3000) // len(unit))
        once, held_once = _count_lines(_MAKERS[case](), unit * times, length)
        twice, held_twice = _count_lines(_MAKERS[case](), unit * times * 2, length)
        assert twice <= 2.3 * once + 200, unit
        if length == 1:
            assert max(held_once, held_twice) < 600, unit


def test_a_piece_costs_the_same_late_as_early() -> None:
    """Lines run for one more delta of arguments, after one thousand and after two thousand of them."""
    parser = _make_tool("hermes")
    parser.feed('<tool_call>{"name": "run", "arguments": {"cmd": "')
    costs = []
    for _ in range(2):
        for _ in range(1000):
            parser.feed("word \\n ")
        costs.append(_lines_of(lambda: parser.feed("word \\n ")))
    assert costs[0] == costs[1]


def _lines_of(action: Callable[[], object]) -> int:
    lines = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal lines
        lines += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        action()
    finally:
        sys.settrace(before)
    return lines
