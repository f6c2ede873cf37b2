"""Calls written as JSON: `{"name": ..., "arguments": {...}}`, one, several, or a list.

The name must be known before arguments can stream; arguments that come first wait for it. Formats say which
markers stand around the JSON; a format without any (`is_bare`) is stricter about what it takes for a call.
"""

from __future__ import annotations

from typing import ClassVar

from parsers.block_parser import BlockParser
from parsers.cursor import Mismatch, Step
from parsers.partial_json import loads_string, mend, read_string, read_value

_NAME_KEYS = ("name",)
_ARGUMENT_KEYS = ("arguments", "parameters")
_WRAPPER_KEYS = ("function",)
_OTHER_KEYS = ("type", "id", "index")


class JsonCallParser(BlockParser):
    """Reads `opener JSON closer`. An opener that is a bracket is the JSON itself."""

    #: What may stand behind the JSON.
    closers: ClassVar[tuple[str, ...]] = ()
    #: Whether the closer of this block was read while passing on broken arguments.
    _is_closed = False

    def _read_block(self, opener: str) -> Step[None]:
        if self._is_bare(opener):
            bracket = opener
        else:
            yield from self._cursor.space()
            bracket = yield from self._cursor.expect("[", "{")
        yield from self._read_calls(bracket, self._is_bare(opener))

    def _is_bare(self, opener: str) -> bool:
        return opener in ("[", "{")

    def _is_prose(self, opener: str, num_calls: int) -> bool:
        return self._is_bare(opener) and num_calls == self._num_calls

    def _read_calls(self, bracket: str, is_bare: bool) -> Step[None]:
        """Read the calls behind `bracket`, and the closer."""
        if bracket == "[":
            yield from self._read_list(is_bare)
        else:
            yield from self._read_sequence(is_bare)
        if not self._is_closed:
            yield from self._read_closer()

    def _read_closer(self) -> Step[None]:
        # Models like to close one bracket too many.
        yield from self._cursor.space()
        while (yield from self._cursor.accept("}", "]")):
            yield from self._cursor.space()
        if not self.closers:
            raise Mismatch
        yield from self._cursor.expect(*self.closers)

    def _read_list(self, is_bare: bool) -> Step[None]:
        while True:
            yield from self._cursor.space()
            yield from self._cursor.expect("{")
            yield from self._read_call(is_bare)
            if self._is_closed:
                return
            yield from self._cursor.space()
            if (yield from self._cursor.expect(",", "]")) == "]":
                return

    def _read_sequence(self, is_bare: bool) -> Step[None]:
        while True:
            yield from self._read_call(is_bare)
            if self._is_closed:
                return
            yield from self._cursor.space()
            if (yield from self._cursor.accept(";", ",")):
                yield from self._cursor.space()
            if (yield from self._cursor.peek()) != "{":
                return
            self._cursor.advance(1)

    def _read_call(self, is_bare: bool, is_wrapped: bool = False) -> Step[None]:
        """Read the members of one call object and its closing brace."""
        cursor = self._cursor
        num_calls = self._num_calls
        name = ""
        waiting: str | None = None
        self._is_closed = False
        while True:
            yield from cursor.space()
            if (yield from cursor.accept("}")):
                break
            key = yield from self._read_text()
            yield from cursor.space()
            yield from cursor.expect(":")
            yield from cursor.space()
            is_out = self._num_calls > num_calls
            if key in _NAME_KEYS and not is_out:
                name = yield from self._read_text()
                if not name or (is_bare and not self._is_known(name)):
                    raise Mismatch
                if waiting is not None:
                    self._whole_call(name, waiting)
            elif key in _ARGUMENT_KEYS and not is_out and name:
                yield from self._read_arguments(name)
                if self._is_closed:
                    return
            elif key in _ARGUMENT_KEYS and not is_out:
                waiting = yield from self._read_waiting_arguments()
            elif key in _WRAPPER_KEYS and not is_out and not is_wrapped and (yield from cursor.accept("{")):
                yield from self._read_call(is_bare, is_wrapped=True)
                if self._is_closed:
                    return
            elif is_bare and not is_out and key not in _OTHER_KEYS:
                raise Mismatch
            else:
                yield from read_value(cursor, _ignore)
            yield from cursor.space()
            if (yield from cursor.expect(",", "}")) == "}":
                break
        if self._num_calls == num_calls:
            if not name or (is_bare and not self._tools):
                raise Mismatch
            self._whole_call(name, "{}")

    def _read_text(self) -> Step[str]:
        if (yield from self._cursor.need()) != '"':
            raise Mismatch
        pieces: list[str] = []
        yield from read_string(self._cursor, pieces.append)
        return loads_string("".join(pieces))

    def _read_arguments(self, name: str) -> Step[None]:
        if (yield from self._cursor.need()) == "{":
            self._is_closed = bool((yield from self._read_json_arguments(name, *self.closers)))
        else:
            arguments = yield from self._read_waiting_arguments()
            self._whole_call(name, arguments)

    def _read_waiting_arguments(self) -> Step[str]:
        """Read arguments that cannot stream: an object, null, or an object written inside a string."""
        pieces: list[str] = []
        yield from read_value(self._cursor, pieces.append)
        text = "".join(pieces)
        if text.startswith('"'):
            text = loads_string(text).strip() or "{}"
        arguments = "{}" if text == "null" else mend(text)
        if arguments is None or not arguments.startswith("{"):
            raise Mismatch
        return arguments


def _ignore(piece: str) -> None:
    """Members of a call object that mean nothing to the caller."""
