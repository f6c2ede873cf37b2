"""The surface: names, errors, options, composition, and what holds for every format by its file."""

from __future__ import annotations

import ast
import itertools
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import parsers
import pytest
from parsers import (
    Parser,
    ParserError,
    ParserEvent,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
    ToolSpec,
    collect,
    join_events,
    parse,
)

_SOURCE = Path(parsers.__file__).parent
_PING = {"type": "function", "function": {"name": "ping", "parameters": {"type": "object"}}}
_CALL = '<tool_call>{"name":"ping","arguments":{}}</tool_call>'


@pytest.mark.parametrize("name", parsers.tool.names())
def test_plain_text_is_plain_text_in_every_tool_format(name: str) -> None:
    text = "  Hello,\n\n1 < 2 and 3 > 2. \n"
    assert parse(text, tool=name, tools=[_PING]) == [TextDelta(text)]


@pytest.mark.parametrize("name", parsers.tool.names())
def test_empty_answer_has_no_events(name: str) -> None:
    assert parse("", tool=name, tools=[_PING]) == []


@pytest.mark.parametrize("name", parsers.reasoning.names())
def test_reasoning_switched_off_leaves_the_text_alone(name: str) -> None:
    text = " </think>Hello <think> there [THINK] "
    assert parse(text, reasoning=parsers.reasoning.create(name, thinking=False)) == [TextDelta(text)]


@pytest.mark.parametrize("name", parsers.reasoning.names())
def test_cut_thinking_is_reasoning(name: str) -> None:
    parser = parsers.reasoning.create(name, thinking=True)
    assert parse("still at", reasoning=parser, finish_reason="length") == [ReasoningDelta("still at")]


def test_names_and_aliases_are_found() -> None:
    aliases = [
        "harmony",
        "openai_gptoss",
        "phi4",
        "llama4_json",
        "qwen3_xml",
        "mimo",
        "glm47",
        "granite-20b-fc",
        "internlm2",
        "hunyuan",
    ]
    for alias in [*aliases, *parsers.tool.names(), "Hermes", "deepseek-v3"]:
        assert isinstance(parsers.tool.create(alias, tools=[_PING]), Parser)
    for alias in [
        "harmony",
        "openai_gptoss",
        "minimax",
        "nemotron",
        "hunyuan",
        "mimo",
        *parsers.reasoning.names(),
    ]:
        assert isinstance(parsers.reasoning.create(alias), Parser)


def test_every_format_says_what_it_is_written_with() -> None:
    bare = {"named", "pythonic", "required"}
    assert {name for name in parsers.tool.names() if not parsers.tool.find(name).markers} == bare
    for name in parsers.reasoning.names():
        option = parsers.reasoning.find(name)
        assert option.markers
        assert option.reasoning_ends


def test_ids_that_the_model_repeats_are_made_unique() -> None:
    section = "<|tool_call_begin|>functions.ping:{}<|tool_call_argument_begin|>{{}}<|tool_call_end|>"
    text = "".join(section.format(number) for number in (2, 2, 1, 1, 0))
    calls = collect(parse(text, tool="kimi_k2")).calls
    assert len({call.id for call in calls}) == 5
    assert all(call.id.startswith("functions.ping:") for call in calls)
    calls = collect(parse("[TOOL_CALLS]ping[CALL_ID]abcdefghi[ARGS]{}" * 2, tool="mistral")).calls
    assert calls[0].id == "abcdefghi"
    assert calls[1].id not in ("", "abcdefghi")


def test_aliases_are_unique() -> None:
    for group in (parsers.tool, parsers.reasoning):
        names = list(group.names())
        for name in group.names():
            names += group.find(name).aliases
        assert len(names) == len(set(names))


def test_unknown_name_is_refused_with_the_choices() -> None:
    with pytest.raises(ParserError, match=r"tool parser 'hermse' does not exist; choose one of .*hermes"):
        parsers.tool.create("hermse")
    with pytest.raises(ParserError, match="reasoning parser"):
        parsers.reasoning.create("../hermes")


@pytest.mark.parametrize(
    "tools", [[{}], [{"function": {"name": ""}}], ["ping"], [{"name": "f", "parameters": [1]}]]
)
def test_bad_tools_are_refused(tools: Any) -> None:
    with pytest.raises(ParserError, match="tools"):
        parsers.tool.create("hermes", tools=tools)


def test_named_needs_the_one_tool() -> None:
    for tools in ([], [_PING, ToolSpec("other")]):
        with pytest.raises(ParserError, match="named"):
            parsers.tool.create("named", tools=tools)


def test_a_finished_parser_is_done() -> None:
    parser = parsers.tool.create("hermes")
    parser.finish()
    with pytest.raises(ParserError, match="new parser"):
        parser.feed("x")
    with pytest.raises(ParserError, match="new parser"):
        parser.finish()


def test_without_parsers_everything_is_text() -> None:
    assert parse(_CALL) == [TextDelta(_CALL)]
    assert parse("") == []


def test_arguments_stream_while_they_are_written() -> None:
    parser = parsers.tool.create("hermes", tools=[_PING], make_id=lambda: "1")
    assert parser.feed('<tool_call>{"name": "ping", "arguments": ') == []
    assert parser.feed('{"a": "b') == [ToolCallStart(0, "1", "ping"), ToolCallDelta(0, '{"a": "b')]
    assert parser.feed("c") == [ToolCallDelta(0, "c")]
    assert parser.feed('"}}') == [ToolCallDelta(0, '"}'), ToolCallEnd(0)]


@pytest.mark.parametrize(
    ("name", "head"),
    [
        ("qwen3_coder", "<tool_call>\n<function=ping>\n<parameter=a>\n"),
        ("glm45", "<tool_call>ping\n<arg_key>a</arg_key>\n<arg_value>"),
        ("minimax_m2", '<minimax:tool_call>\n<invoke name="ping">\n<parameter name="a">'),
    ],
)
def test_string_parameters_of_tags_stream(name: str, head: str) -> None:
    parser = parsers.tool.create(name, tools=[_PING])
    assert parser.feed(head)[-1] == ToolCallDelta(0, '{"a": "')
    assert parser.feed('say "') == [ToolCallDelta(0, 'say \\"')]


def test_text_is_not_held_back_longer_than_a_marker_could_grow() -> None:
    parser = parsers.tool.create("hermes")
    assert parser.feed("a <tool") == [TextDelta("a")]
    assert parser.feed("x") == [TextDelta(" <toolx")]


def test_ids_are_unique_and_their_maker_can_be_given() -> None:
    ids = [call.id for call in collect(parse(_CALL * 50, tool="hermes")).calls]
    assert len(set(ids)) == 50
    numbers = itertools.count(7)
    parser = parsers.tool.create("hermes", make_id=lambda: f"c{next(numbers)}")
    assert [call.id for call in collect(parse(_CALL * 2, tool=parser)).calls] == ["c7", "c8"]


@pytest.mark.parametrize(
    ("tail", "thinking"),
    [
        ("<|im_start|>assistant\n<think>\n", True),
        ("<think>\n\n</think>\n\n", False),
        ("<think>", True),
        ("hi<|im_start|>assistant\n", None),
    ],
)
def test_end_of_the_prompt_says_whether_thinking_is_open(tail: str, thinking: bool | None) -> None:
    expected = {True: [ReasoningDelta("x")], False: [TextDelta("x")], None: [TextDelta("x")]}[thinking]
    assert parse("x", reasoning=parsers.reasoning.create("qwen3", prompt_tail=tail)) == expected


def test_said_thinking_beats_the_end_of_the_prompt() -> None:
    parser = parsers.reasoning.create("qwen3", thinking=False, prompt_tail="<think>\n")
    assert parse("x", reasoning=parser) == [TextDelta("x")]


def test_marker_spelled_by_ordinary_tokens_is_prose() -> None:
    parser = parsers.reasoning.create("deepseek_r1", marker_ids={"</think>": 9})
    events: list[ParserEvent] = []
    for text, token in [
        ("a", 1),
        ("</", 2),
        ("think", 3),
        (">", 4),
        ("b", 5),
        ("</think>", 9),
        ("c", 6),
        ("</think>", 7),
    ]:
        events += parser.feed(text, [token])
    assert join_events(events + parser.finish()) == [ReasoningDelta("a</think>b"), TextDelta("c</think>")]


def test_marker_token_counts_even_if_its_text_comes_late() -> None:
    parser = parsers.tool.create("hermes", tools=[_PING], marker_ids={"<tool_call>": 9}, make_id=lambda: "1")
    assert parser.feed("<tool_call> in prose", [1, 2, 3]) == [TextDelta("<tool_call> in prose")]
    assert parser.feed("", [9]) == []
    assert parser.feed(_CALL, [4, 5])[0] == ToolCallStart(0, "1", "ping")


def test_pipeline_passes_tokens_on() -> None:
    reasoning = parsers.reasoning.create("deepseek_r1", marker_ids={"</think>": 8})
    tool = parsers.tool.create("hermes", tools=[_PING], marker_ids={"<tool_call>": 9})
    parser = parsers.compose(reasoning, tool)
    assert parser is not None
    events = (
        parser.feed("hm", [1])
        + parser.feed("</think>", [8])
        + parser.feed("<tool_call>", [3])
        + parser.feed("x", [4])
    )
    events += parser.feed("<tool_call>", [9]) + parser.feed(_CALL.removeprefix("<tool_call>"), [5, 6, 7])
    answer = collect(events + parser.finish())
    assert (answer.reasoning, answer.text, len(answer.calls)) == ("hm", "<tool_call>x", 1)


def test_events_survive_the_wire() -> None:
    events = [*parse("a<tool_call>" + _CALL, tool="hermes"), ReasoningDelta("r")]
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(events), type=list[ParserEvent]) == events


def test_deltas_are_joined_by_kind_and_call() -> None:
    assert join_events([TextDelta("a"), TextDelta("b"), ReasoningDelta("c"), TextDelta("d")]) == [
        TextDelta("ab"),
        ReasoningDelta("c"),
        TextDelta("d"),
    ]
    assert len(join_events([ToolCallDelta(0, "a"), ToolCallDelta(1, "b")])) == 2


def test_no_evaluation_and_no_regular_expression_in_the_source() -> None:
    """Model output meets neither an evaluator nor a pattern that could run away."""
    for path in _SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import | ast.ImportFrom):
                modules = {getattr(node, "module", None), *(alias.name for alias in node.names)}
                assert not modules & {"re", "regex", "ast", "pickle"}, path
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in ("eval", "exec", "compile"), path


def test_formats_do_not_import_one_another() -> None:
    for folder in ("tool", "reasoning"):
        for path in (_SOURCE / folder).glob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ImportFrom):
                    assert not (node.module or "").startswith(("parsers.tool.", "parsers.reasoning.")), path


def test_package_needs_msgspec_and_the_standard_library_only() -> None:
    code = (
        "import sys, msgspec\n"
        "before = set(sys.modules)\n"
        "import parsers\n"
        "for group in (parsers.tool, parsers.reasoning):\n"
        "    for name in group.names(): group.find(name)\n"
        "tops = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        "print(sorted(tops - set(sys.stdlib_module_names) - {'parsers', 'msgspec'}))"
    )
    result = subprocess.run(
        [sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert ast.literal_eval(result.stdout) == []
