"""Calls written Gemma's way: `call:name{key:<quote>text<quote>,other:[1,2],third:{k:true}}`.

Strings stand between two of the format's own quote markers, keys stand bare, the rest is as in JSON. Bare
text that is no number or JSON word is a string.
"""

from __future__ import annotations

from typing import ClassVar

from parsers.block_parser import BlockParser
from parsers.coerce import coerce
from parsers.cursor import Cursor, Mismatch, Step, Truncated
from parsers.partial_json import dumps, is_number, loads_string, read_string
from parsers.scanner import Markers
from parsers.tool_spec import Schema, ToolSpec

MAX_DEPTH = 64
_MAX_KEY_LEN = 256
_STRUCTURE = frozenset('{}[],:"')
_WORDS = {"true": "true", "false": "false", "null": "null", "True": "true", "False": "false", "None": "null"}


class BracedCallParser(BlockParser):
    """Reads `opener call:NAME{...} closer`. A call comes out when its last brace does."""

    closer: ClassVar[str]
    quote: ClassVar[str]
    #: Whether a quoted value still takes the type that the schema gives.
    coerces_quoted: ClassVar[bool] = False

    def _read_block(self, opener: str) -> Step[None]:
        while True:
            yield from self._cursor.space()
            yield from self._cursor.expect("call:")
            name = yield from self._cursor.word("{")
            pieces: list[str] = []
            yield from self._read_object(pieces, self._tools.get(name, ToolSpec(name)), 0)
            self._whole_call(name, "".join(pieces))
            yield from self._cursor.space()
            if not (yield from self._cursor.accept(",")):
                break
        yield from self._cursor.expect(self.closer)

    def _read_object(self, pieces: list[str], tool: ToolSpec | None, depth: int) -> Step[None]:
        cursor = self._cursor
        yield from cursor.expect("{")
        separator = "{"
        while True:
            yield from cursor.space()
            if (yield from cursor.accept("}")):
                break
            key = yield from self._read_key()
            pieces.append(separator + dumps(key) + ": ")
            separator = ", "
            yield from cursor.space()
            schema = tool.schema_of(key) if tool else None
            yield from self._read_value(pieces, schema, tool.parameters if tool else None, depth)
            yield from cursor.space()
            if (yield from cursor.expect(",", "}")) == "}":
                break
        pieces.append("{}" if separator == "{" else "}")

    def _read_list(self, pieces: list[str], depth: int) -> Step[None]:
        cursor = self._cursor
        yield from cursor.expect("[")
        separator = "["
        while True:
            yield from cursor.space()
            if (yield from cursor.accept("]")):
                break
            pieces.append(separator)
            separator = ", "
            yield from self._read_value(pieces, None, None, depth)
            yield from cursor.space()
            if (yield from cursor.expect(",", "]")) == "]":
                break
        pieces.append("[]" if separator == "[" else "]")

    def _read_value(
        self, pieces: list[str], schema: Schema | None, root: Schema | None, depth: int
    ) -> Step[None]:
        char = yield from self._cursor.need()
        if char in "{[" and depth == MAX_DEPTH:
            raise Mismatch
        if char == "{":
            yield from self._read_object(pieces, None, depth + 1)
        elif char == "[":
            yield from self._read_list(pieces, depth + 1)
        elif (quoted := (yield from self._read_quoted())) is not None:
            pieces.append(coerce(quoted, schema, root) if schema and self.coerces_quoted else dumps(quoted))
        else:
            bare = yield from _read_bare(self._cursor)
            pieces.append(coerce(bare, schema, root) if schema else _natural(bare))

    def _read_quoted(self) -> Step[str | None]:
        """Read a quoted string and return it; None if the next thing is not one."""
        pieces: list[str] = []
        if (yield from self._cursor.accept(self.quote)):
            if not (yield from self._cursor.until(Markers(self.quote), pieces.append)):
                raise Truncated
            return "".join(pieces)
        if (yield from self._cursor.peek()) == '"':
            yield from read_string(self._cursor, pieces.append)
            return loads_string("".join(pieces))
        return None

    def _read_key(self) -> Step[str]:
        key = yield from self._read_quoted()
        if key is not None:
            yield from self._cursor.space()
            yield from self._cursor.expect(":")
            return key
        key = (yield from self._cursor.bounded(":", _MAX_KEY_LEN)).strip()
        if not key or not _STRUCTURE.isdisjoint(key):
            raise Mismatch
        return key


def _read_bare(cursor: Cursor) -> Step[str]:
    """Read up to what can go on behind a value; a bracket in there is text, which models forget to quote."""
    pieces = []
    while (yield from cursor.need()) not in ",]}<\n":
        pieces.append(cursor.advance(1))
    text = "".join(pieces).strip()
    if not text:
        raise Mismatch
    return text


def _natural(text: str) -> str:
    if text in _WORDS:
        return _WORDS[text]
    return text if is_number(text) else dumps(text)
