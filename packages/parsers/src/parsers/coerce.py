"""Turning the text of one argument into JSON by the tool's schema.

Tag formats write every value as bare text, so the schema has to say whether `5` is a number. Where a schema
allows several types, the order is null, integer, number, boolean, object, array, string. A value that fits
none of them, or that has no schema, is a string. The schema is read, never compiled, and only as far as
types go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from parsers.partial_json import dumps, is_number, mend
from parsers.pythonic import loads_literal
from parsers.tool_spec import Schema

_MAX_SCHEMA_DEPTH = 16
_UNIONS = ("anyOf", "oneOf", "allOf")


def coerce(text: str, schema: Schema | None, root: Schema | None = None) -> str:
    """Return the JSON text of the value that `text` means under `schema`.

    Args:
        text: what the model wrote.
        schema: of this value; None means a string.
        root: the schema that `$ref` points into.
    """
    allowed = schema_types(schema, root)
    for kind, read in _READERS.items():
        if kind in allowed and (value := read(text.strip())) is not None:
            return value
    return dumps(text)


def is_plain_string(schema: Schema | None, root: Schema | None = None) -> bool:
    """Whether a value under `schema` is text whatever it says, so that it may stream."""
    return not schema_types(schema, root) - {"string"}


def schema_types(schema: Schema | None, root: Schema | None = None) -> set[str]:
    """Return the JSON types that `schema` allows; empty if it does not say."""
    return set(_types(schema, root or {}, 0)) if schema is not None else set()


def _types(schema: Any, root: Schema, depth: int) -> Iterator[str]:
    if not isinstance(schema, Mapping) or depth > _MAX_SCHEMA_DEPTH:
        return
    declared = schema.get("type")
    if isinstance(declared, str):
        yield declared
    elif isinstance(declared, list):
        yield from (kind for kind in declared if isinstance(kind, str))
    elif "const" in schema or isinstance(schema.get("enum"), list):
        values = [schema["const"]] if "const" in schema else schema["enum"]
        yield from map(_type_of, values)
    elif isinstance(schema.get("$ref"), str):
        yield from _types(_resolve(schema["$ref"], root), root, depth + 1)
    else:
        for union in _UNIONS:
            options = schema.get(union)
            for option in options if isinstance(options, list) else ():
                yield from _types(option, root, depth + 1)
        if "properties" in schema:
            yield "object"
        if "items" in schema:
            yield "array"
    if schema.get("nullable") is True:
        yield "null"


def _resolve(reference: str, root: Schema) -> Any:
    # Any: a place in an open-ended JSON document.
    place: Any = root
    for key in reference.removeprefix("#/").split("/"):
        place = place.get(key) if isinstance(place, Mapping) else None
    return place


def _type_of(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
    return "object"


def _read_null(text: str) -> str | None:
    return "null" if text.lower() in ("null", "none") else None


def _read_integer(text: str) -> str | None:
    if not is_number(text):
        return None
    whole, _, fraction = text.partition(".")
    is_whole = "e" not in text.lower() and not fraction.strip("0")
    return whole if is_whole else None


def _read_number(text: str) -> str | None:
    return text if is_number(text) else None


def _read_boolean(text: str) -> str | None:
    return text.lower() if text.lower() in ("true", "false") else None


def _read_container(opening: str) -> Callable[[str], str | None]:
    def read(text: str) -> str | None:
        if not text.startswith(opening):
            return None
        return mend(text) or loads_literal(text)

    return read


_READERS: dict[str, Callable[[str], str | None]] = {
    "null": _read_null,
    "integer": _read_integer,
    "number": _read_number,
    "boolean": _read_boolean,
    "object": _read_container("{"),
    "array": _read_container("["),
}
