"""JSON and Python literals are read by hand, mended only where one meaning is left, and never evaluated."""

from __future__ import annotations

import ast
import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from parsers.partial_json import MAX_DEPTH, escape, is_number, mend
from parsers.pythonic import loads_literal

_LEAVES = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
)
_VALUES = st.recursive(
    _LEAVES, lambda v: st.lists(v, max_size=4) | st.dictionaries(st.text(), v, max_size=4), max_leaves=12
)
_FEW = settings(max_examples=150, deadline=None, derandomize=True)


@_FEW
@given(_VALUES, st.sampled_from([None, 0, 2]), st.booleans())
def test_json_passes_through_as_it_is(value: Any, indent: int | None, ascii_only: bool) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    assert mend(text) == text


@_FEW
@given(_VALUES)
def test_python_literal_means_what_python_means(value: Any) -> None:
    text = repr(value)
    read = loads_literal(text)
    assert read is not None
    assert json.loads(read) == ast.literal_eval(text)


@_FEW
@given(st.text(alphabet="{}[]\"\\',:ntrue01.-+eE \n_x()", max_size=30))
def test_whatever_is_accepted_is_json(text: str) -> None:
    for read in (mend, loads_literal):
        result = read(text)
        if result is not None:
            json.loads(result)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('"a\nb\tc\x01"', "a\nb\tc\x01"),
        (r'"\d+ \'q\' \x41 \u12 \"ok\""', "\\d+ 'q' \\x41 \\u12 \"ok\""),
        ('{"a": [1, 2, ], }', {"a": [1, 2]}),
        ("[True, False, None]", [True, False, None]),
        (' \n{"a":1}\n ', {"a": 1}),
    ],
)
def test_common_mistakes_are_mended(text: str, value: object) -> None:
    mended = mend(text)
    assert mended is not None
    assert json.loads(mended) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[,]",
        "{,}",
        '{"a"}',
        '{"a" 1}',
        "{a: 1}",
        "[1 2]",
        "01",
        "1.",
        ".5",
        "+1",
        "NaN",
        "tru",
        "nulls",
        '"a',
        "{} {}",
        "[1,,2]",
        "'a'",
    ],
)
def test_what_is_not_json_is_refused(text: str) -> None:
    assert mend(text) is None


def test_depth_is_limited() -> None:
    assert mend("[" * MAX_DEPTH + "]" * MAX_DEPTH) is not None
    assert mend("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1)) is None
    assert loads_literal("[" * 64 + "]" * 64) is not None
    assert loads_literal("[" * 65 + "]" * 65) is None


@pytest.mark.parametrize(
    "text",
    [
        "open('x')",
        "x",
        "1 + 1",
        "[x for x in (1,)]",
        "f'{1}'",
        "b'x'",
        "{1: 2}",
        "{1, 2}",
        "lambda: 0",
        "--1",
        "1j",
        "Trueish",
        "None.x",
        "'a' 'b'",
        "[1",
        "0x",
        "1__x",
        "",
    ],
)
def test_anything_but_a_literal_is_refused(text: str) -> None:
    assert loads_literal(text) is None


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (r"'\x41\u00e9\U0001f336\n\q'", "A\u00e9\U0001f336\n\\q"),
        (r"'\ud800'", "\\ud800"),
        ("'''a'b''c\n'''", "a'b''c\n"),
        ('""', ""),
        ("()", []),
        ("(1,)", [1]),
        ("1_000", 1000),
        ("+.5", 0.5),
        ("5.", 5.0),
        ("-0x1F", -31),
        ("{'a': true, \"b\": null}", {"a": True, "b": None}),
    ],
)
def test_python_spellings(text: str, value: object) -> None:
    read = loads_literal(text)
    assert read is not None
    assert json.loads(read) == value


def test_long_texts_are_read_in_slices() -> None:
    value = {"a": ['\\"x\n' * 5000], "b": "q" * 20_000}
    assert json.loads(mend(json.dumps(value)) or "") == value
    assert json.loads(loads_literal(repr(value)) or "") == value


@_FEW
@given(st.text(), st.integers(0, 20))
def test_escaped_pieces_join_to_the_escaped_whole(text: str, place: int) -> None:
    assert escape(text[:place]) + escape(text[place:]) == escape(text)
    assert json.loads(f'"{escape(text)}"') == text


@_FEW
@given(st.floats(allow_nan=False, allow_infinity=False))
def test_numbers_by_json_grammar(number: float) -> None:
    assert is_number(json.dumps(number))
    assert math.isclose(json.loads(json.dumps(number)), number)
