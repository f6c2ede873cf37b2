"""Reading JSON that is still arriving, and passing it on as it comes.

`read_value` checks each character against the grammar and hands the text on at once, so that arguments
stream while the model writes them and braces inside strings never end a call. It mends what models often
get wrong and what has one meaning only: raw line breaks in strings, a backslash that starts no escape, a
comma before a closing bracket, Python's True, False and None. Anything else is a `Mismatch`. It builds no
objects.
"""

from __future__ import annotations

import json

import msgspec

from parsers.cursor import Cursor, Mismatch, Sink, Step, Truncated, read_text

MAX_DEPTH = 128
_SPACE = " \t\r\n"
_NUMBER_CHARS = frozenset("+-.0123456789Ee")
_WORDS = {"true": "true", "false": "false", "null": "null", "True": "true", "False": "false", "None": "null"}
_CONTROLS = {code: json.dumps(chr(code))[1:-1] for code in range(0x20)}
_HEX = frozenset("0123456789abcdefABCDEF")


def dumps(value: object) -> str:
    """Return JSON text with non-ASCII characters as they are."""
    return json.dumps(value, ensure_ascii=False)


def escape(text: str) -> str:
    """Return `text` as it stands in a JSON string. Escaped pieces join to the escaped whole."""
    return dumps(text)[1:-1]


def loads_string(text: str) -> str:
    """Return the string that the JSON text `text` means.

    Raises:
        Mismatch: if it is no string of Unicode text (a lone surrogate is not).
    """
    try:
        return msgspec.json.decode(text, type=str)
    except msgspec.DecodeError as error:
        raise Mismatch from error


def is_number(token: str) -> bool:
    """Whether `token` is a number by JSON's grammar."""
    digits = token[1:] if token.startswith("-") else token
    mantissa, has_exponent, exponent = digits.replace("E", "e").partition("e")
    whole, has_point, fraction = mantissa.partition(".")
    return (
        _is_digits(whole)
        and (whole == "0" or not whole.startswith("0"))
        and (not has_point or _is_digits(fraction))
        and (not has_exponent or _is_digits(exponent[1:] if exponent[:1] in ("+", "-") else exponent))
    )


def mend(text: str) -> str | None:
    """Return the JSON text of the one value that `text` holds, mended; None if it holds something else."""
    pieces: list[str] = []

    def read(cursor: Cursor) -> Step[bool]:
        yield from cursor.space()
        yield from read_value(cursor, pieces.append)
        return True

    # The line end lets a number at the very end be seen to be over.
    return "".join(pieces) if read_text(text + "\n", read) else None


def _is_digits(text: str) -> bool:
    return text.isascii() and text.isdigit()


def read_value(cursor: Cursor, sink: Sink) -> Step[None]:
    """Read one JSON value, which starts at the next character, and hand its text to `sink` as it comes.

    Raises:
        Mismatch: the next character cannot go on the value; `sink` has had everything before it.
        Truncated: the text ended inside the value.
    """
    closers: list[str] = []
    state = "value"
    comma = ""
    while True:
        char = yield from cursor.need()
        if char in _SPACE:
            piece = cursor.advance(1)
            if comma:
                comma += piece
            else:
                sink(piece)
            continue
        if (
            closers
            and char == closers[-1]
            and state in ("first key", "first value", "next", "key", "after comma")
        ):
            # "key" and "after comma" mean a comma before the bracket: it is left out.
            comma = ""
            sink(cursor.advance(1))
            closers.pop()
        elif state == "next":
            if char != ",":
                raise Mismatch
            comma = cursor.advance(1)
            state = "key" if closers[-1] == "}" else "after comma"
            continue
        elif state == "colon":
            if char != ":":
                raise Mismatch
            sink(cursor.advance(1))
            state = "value"
            continue
        elif state in ("key", "first key"):
            if char != '"':
                raise Mismatch
            sink(comma)
            comma = ""
            yield from read_string(cursor, sink)
            state = "colon"
            continue
        else:
            if comma:
                sink(comma)
                comma = ""
            if char in "{[":
                if len(closers) == MAX_DEPTH:
                    raise Mismatch
                sink(cursor.advance(1))
                closers.append("}" if char == "{" else "]")
                state = "first key" if char == "{" else "first value"
                continue
            yield from _read_scalar(cursor, char, sink)
        if not closers:
            return
        state = "next"


def read_string(cursor: Cursor, sink: Sink) -> Step[None]:
    """Read a JSON string, of which the opening quote is next, and hand its text to `sink` as it comes."""
    sink(cursor.advance(1))
    while True:
        text = cursor.run('"\\')
        if text:
            sink(text.translate(_CONTROLS))
        char = yield from cursor.need()
        if char == '"':
            sink(cursor.advance(1))
            return
        if char == "\\":
            yield from _read_escape(cursor, sink)


def _read_escape(cursor: Cursor, sink: Sink) -> Step[None]:
    ahead = yield from cursor.look(2)
    if len(ahead) < 2:
        cursor.advance(len(ahead))
        raise Truncated
    if ahead[1] in '"\\/bfnrt':
        sink(cursor.advance(2))
        return
    if ahead[1] == "u":
        ahead = yield from cursor.look(6)
        digits = ahead[2:]
        if _HEX.issuperset(digits):
            piece = cursor.advance(len(ahead))
            if len(ahead) < 6:
                raise Truncated
            sink(piece)
            return
    cursor.advance(1)
    if ahead[1] != "'":
        sink("\\\\")


def _read_scalar(cursor: Cursor, char: str, sink: Sink) -> Step[None]:
    if char == '"':
        yield from read_string(cursor, sink)
    elif char in _NUMBER_CHARS:
        yield from _read_number(cursor, sink)
    else:
        word = yield from cursor.expect(*_WORDS)
        sink(_WORDS[word])


def _read_number(cursor: Cursor, sink: Sink) -> Step[None]:
    pieces: list[str] = []
    while (char := (yield from cursor.peek())) and char in _NUMBER_CHARS:
        pieces.append(cursor.advance(1))
    token = "".join(pieces)
    if not char:
        sink(token)
        raise Truncated
    if not is_number(token):
        sink(token)
        raise Mismatch
    sink(token)
