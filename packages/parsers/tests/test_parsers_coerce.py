"""Values of tag formats take the type that the tool's schema gives."""

from __future__ import annotations

import json
from typing import Any

import pytest
from parsers.coerce import coerce, is_plain_string, schema_types

_ALL = {"type": ["string", "array", "object", "boolean", "number", "integer", "null"]}


@pytest.mark.parametrize(
    ("text", "schema", "value"),
    [
        ("42", None, "42"),
        ("42", {}, "42"),
        ("42", {"description": "no type"}, "42"),
        ("42", {"type": "string"}, "42"),
        (" 42\n", {"type": "integer"}, 42),
        ("42.0", {"type": "integer"}, 42),
        ("-0.50", {"type": "number"}, -0.5),
        ("1e3", {"type": "number"}, 1000.0),
        ("1e3", {"type": "integer"}, "1e3"),
        ("007", {"type": "integer"}, "007"),
        ("nan", {"type": "number"}, "nan"),
        ("Infinity", {"type": "number"}, "Infinity"),
        ("\u0664", {"type": "integer"}, "\u0664"),
        ("True", {"type": "boolean"}, True),
        ("1", {"type": "boolean"}, "1"),
        ("null", {"type": ["string", "null"]}, None),
        ("none", {"anyOf": [{"type": "string"}, {"type": "null"}]}, None),
        ("null", {"type": "string"}, "null"),
        ("null", {"type": "string", "nullable": True}, None),
        ("[1, {}]", {"type": "array"}, [1, {}]),
        ("['a', None]", {"type": "array"}, ["a", None]),
        ("[oops]", {"type": "array"}, "[oops]"),
        ("{'a': (1, 2)}", {"type": "object"}, {"a": [1, 2]}),
        ('{"a": 1} x', {"type": "object"}, '{"a": 1} x'),
        ('{"a\n": 1}', {"type": "object"}, {"a\n": 1}),
        ("{}", {"properties": {"x": {}}}, {}),
        ("2", {"enum": [1, 2]}, 2),
        ("2", {"enum": ["1", "2"]}, "2"),
        ("2", {"const": 2}, 2),
        ("null", _ALL, None),
        ("1", _ALL, 1),
        ("1.5", _ALL, 1.5),
        ("false", _ALL, False),
        ("{}", _ALL, {}),
        ("[]", _ALL, []),
        ("x", _ALL, "x"),
        ("", _ALL, ""),
        ("  kept ", {"type": ["string", "integer"]}, "  kept "),
        ("__import__('os')", {"type": "object"}, "__import__('os')"),
    ],
)
def test_value_takes_the_first_type_that_fits(
    text: str, schema: dict[str, Any] | None, value: object
) -> None:
    read = json.loads(coerce(text, schema))
    assert read == value
    assert type(read) is type(value)


def test_numbers_keep_all_their_digits() -> None:
    assert coerce("123456789012345678901234567890", {"type": "integer"}) == "123456789012345678901234567890"
    assert (
        coerce("0.1000000000000000055511151231257827", {"type": "number"})
        == "0.1000000000000000055511151231257827"
    )


def test_reference_is_followed_and_a_loop_ends() -> None:
    root = {"$defs": {"n": {"type": "integer"}, "loop": {"$ref": "#/$defs/loop"}}}
    assert coerce("3", {"$ref": "#/$defs/n"}, root) == "3"
    assert coerce("3", {"$ref": "#/$defs/loop"}, root) == '"3"'
    assert coerce("3", {"$ref": "#/nowhere"}, root) == '"3"'
    assert schema_types({"allOf": [{"$ref": "#/$defs/n"}, {"minimum": 1}]}, root) == {"integer"}


def test_wide_unions_of_unions_end() -> None:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(200):
        schema = {"anyOf": [schema]}
    assert coerce("3", schema) == '"3"'


def test_only_what_is_text_whatever_it_says_may_stream() -> None:
    assert is_plain_string(None)
    assert is_plain_string({"type": "string"})
    assert is_plain_string({"description": "no type"})
    assert not is_plain_string({"type": ["string", "null"]})
    assert not is_plain_string({"type": "array"})
