"""Calls written as tags: a function tag, and in it one tag for each parameter with bare text inside.

String parameters stream as they come, escaped for JSON; a value of another type waits for its end and is
read by the tool's schema. A value ends at its own closing tag only, so that code full of angle brackets
survives; where a model forgets that tag, the end of the function and of the block right behind one another
end it too.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

from parsers.block_parser import BlockParser
from parsers.coerce import coerce, is_plain_string
from parsers.cursor import Mismatch, Step, Truncated
from parsers.partial_json import dumps, escape
from parsers.scanner import Markers
from parsers.tool_spec import ToolSpec


class Parameter(NamedTuple):
    """The head of a parameter: its name, and whether it is a string (None: the schema says)."""

    name: str
    is_string: bool | None = None


class TaggedParser(BlockParser):
    """Reads `block_open (call_open NAME (param_open KEY value param_close)* call_close)* block_close`."""

    block_open: ClassVar[str]
    block_close: ClassVar[str]
    call_open: ClassVar[str]
    call_close: ClassVar[str]
    param_open: ClassVar[str]
    param_close: ClassVar[str]
    #: Whether one line break after the opening and one before the closing tag of a value belong to the
    #: markup.
    trims_newline: ClassVar[bool] = False

    def _read_block(self, opener: str) -> Step[None]:
        if opener == self.block_open:
            yield from self._cursor.space()
            yield from self._cursor.expect(self.call_open)
        while True:
            if (yield from self._read_call(is_bare=opener != self.block_open)):
                return
            yield from self._cursor.space()
            if (yield from self._cursor.expect(self.call_open, self.block_close)) == self.block_close:
                return

    def _read_call(self, is_bare: bool) -> Step[bool]:
        """Read one call behind `call_open`. Returns whether the block ended with it."""
        name = yield from self._read_name()
        if is_bare and not self._is_known(name):
            raise Mismatch
        self._start_call(name)
        end = yield from self._read_parameters(name)
        self._end_call()
        return end in (self.block_close, *self._ends_of_all)

    def _read_name(self) -> Step[str]:
        """Read the name of the function and the rest of its opening tag."""
        name = yield from self._cursor.word(">")
        yield from self._cursor.expect(">")
        return name

    def _read_parameter_head(self) -> Step[Parameter]:
        """Read the name of a parameter and the rest of its opening tag."""
        name = yield from self._cursor.bounded(">", 256)
        return Parameter(name.strip())

    @property
    def _ends_of_all(self) -> tuple[str, ...]:
        """The end of the function and the end of the block, as they follow one another."""
        return (self.call_close + self.block_close, self.call_close + "\n" + self.block_close)

    def _read_parameters(self, name: str, tag: str = "") -> Step[str]:
        """Read the parameters, from behind `tag` on, and stream them as one JSON object.

        Returns:
            The tag that ended them.
        """
        markers = Markers(self.param_open, self.call_close, self.block_close)
        tool = self._tools.get(name, ToolSpec(name))
        separator = "{"
        while True:
            end, tag = tag, ""
            if not end:
                end = yield from self._read_strays(markers)
            if end == self.param_open:
                head = yield from self._try_parameter_head()
                if head is not None:
                    end = yield from self._read_value(head, tool, separator)
                    separator = ", "
                if end in (self.param_close, self.param_open):
                    continue
            if not end and self._is_cut:
                raise Truncated
            self._arguments("{}" if separator == "{" else "}")
            return end

    def _read_strays(self, markers: Markers) -> Step[str]:
        """Read up to the next tag; what is not white space there is no part of the call, so it is text."""
        strays: list[str] = []
        tag = yield from self._cursor.until(markers, strays.append)
        stray = "".join(strays)
        if stray.strip():
            self._text(stray)
        return tag

    def _try_parameter_head(self) -> Step[Parameter | None]:
        """Read a parameter's opening tag; give it back as text if it is none, or if the text ends in it."""
        self._cursor.start_record(self.param_open)
        try:
            head = yield from self._read_parameter_head()
        except Mismatch:
            self._text(self._cursor.end_record())
            return None
        except Truncated:
            record = self._cursor.end_record()
            if not self._is_cut:
                self._text(record)
            return None
        self._cursor.end_record()
        return head

    def _read_value(self, head: Parameter, tool: ToolSpec, separator: str) -> Step[str]:
        schema = tool.schema_of(head.name)
        key = separator + dumps(head.name) + ": "
        is_string = is_plain_string(schema, tool.parameters) if head.is_string is None else head.is_string
        if is_string:
            self._arguments(key + '"')
            trim = NewlineTrim(self, self.trims_newline)
            end = yield from self._cursor.until(self._value_ends(), trim.take)
            if end or not self._is_cut:
                self._arguments('"')
            return end
        pieces: list[str] = []
        end = yield from self._cursor.until(self._value_ends(), pieces.append)
        if end or not self._is_cut:
            text = "".join(pieces)
            if self.trims_newline:
                text = text.removeprefix("\n").removesuffix("\n")
            self._arguments(key + self._read_typed(text, head, tool))
        return end

    def _read_typed(self, text: str, head: Parameter, tool: ToolSpec) -> str:
        """Return the JSON text of a value that is not plainly a string."""
        return coerce(text, tool.schema_of(head.name), tool.parameters)

    def _value_ends(self) -> Markers:
        return Markers(self.param_close, *self._ends_of_all)

    def _stream_string(self, piece: str) -> None:
        self._arguments(escape(piece))


class NewlineTrim:
    """Passes text on without one line break at its start and one at its end."""

    def __init__(self, parser: TaggedParser, is_on: bool) -> None:
        self._stream = parser._stream_string
        self._is_on = is_on
        self._is_start = True
        self._held = ""

    def take(self, piece: str) -> None:
        """Pass on `piece`; a line break at its end waits for more."""
        if self._is_on:
            if self._is_start:
                piece = piece.removeprefix("\n")
                self._is_start = False
            piece = self._held + piece
            self._held = "\n" if piece.endswith("\n") else ""
            piece = piece.removesuffix(self._held) if self._held else piece
        if piece:
            self._stream(piece)
