"""Reading Python calls and literals by hand: `name(key='value', other=[1, None])` becomes JSON text.

Only literals are read: strings, numbers, True, False, None (and JSON's spellings), lists, tuples and dicts
with string keys. A name, a call, an operator or an f-string is a `Mismatch`; nothing is ever evaluated.
"""

from __future__ import annotations

from parsers.cursor import Cursor, Mismatch, Step, Truncated, read_text
from parsers.partial_json import dumps, is_number

MAX_DEPTH = 64
_WORDS = {"True": "true", "False": "false", "None": "null", "true": "true", "false": "false", "null": "null"}
_ESCAPES = {
    "\\": "\\",
    "'": "'",
    '"': '"',
    "\n": "",
    "n": "\n",
    "t": "\t",
    "r": "\r",
    "b": "\b",
    "f": "\f",
    "a": "\a",
}
_ESCAPES |= {"v": "\v", "0": "\0"}
_HEX_LENS = {"x": 2, "u": 4, "U": 8}
_NUMBER_CHARS = frozenset("+-._0123456789abcdefABCDEFxX")
_CLOSERS = {"[": "]", "(": ")", "{": "}"}


def loads_literal(text: str) -> str | None:
    """Return the JSON text of the one Python literal that `text` holds, None if it holds something else."""
    pieces: list[str] = []

    def read(cursor: Cursor) -> Step[bool]:
        yield from cursor.space()
        yield from read_literal(cursor, pieces)
        return True

    return "".join(pieces) if read_text(text + "\n", read) else None


def read_arguments(cursor: Cursor) -> Step[str]:
    """Read keyword arguments and the closing parenthesis, and return them as the text of a JSON object.

    Raises:
        Mismatch: something is no keyword or no literal; the offending character is unread.
        Truncated: the text ended first.
    """
    pieces: list[str] = []
    while True:
        yield from cursor.space()
        if (yield from cursor.need()) == ")":
            cursor.advance(1)
            return "{" + "".join(pieces) + "}"
        key = yield from _read_keyword(cursor)
        pieces.append((", " if pieces else "") + dumps(key) + ": ")
        yield from read_literal(cursor, pieces)
        yield from cursor.space()
        if (yield from cursor.need()) == ",":
            cursor.advance(1)
        elif (yield from cursor.need()) != ")":
            raise Mismatch


def read_literal(cursor: Cursor, pieces: list[str], depth: int = 0) -> Step[None]:
    """Read the literal that starts at the next character and append its JSON text to `pieces`."""
    char = yield from cursor.need()
    if char in "'\"":
        text = yield from _read_string(cursor)
        pieces.append(dumps(text))
    elif char in _CLOSERS:
        if depth == MAX_DEPTH:
            raise Mismatch
        yield from _read_container(cursor, pieces, depth)
    elif char in "+-." or char.isdigit():
        number = yield from _read_number(cursor)
        pieces.append(number)
    else:
        word = yield from cursor.expect(*_WORDS)
        after = yield from cursor.peek()
        if after.isalnum() or after == "_":
            raise Mismatch
        pieces.append(_WORDS[word])


def _read_keyword(cursor: Cursor) -> Step[str]:
    key = yield from cursor.word("=", " ")
    yield from cursor.space()
    yield from cursor.expect("=")
    yield from cursor.space()
    return key


def _read_container(cursor: Cursor, pieces: list[str], depth: int) -> Step[None]:
    opening = cursor.advance(1)
    closing = _CLOSERS[opening]
    pieces.append("{" if opening == "{" else "[")
    is_first = True
    while True:
        yield from cursor.space()
        if (yield from cursor.need()) == closing:
            cursor.advance(1)
            pieces.append("}" if opening == "{" else "]")
            return
        if not is_first:
            pieces.append(", ")
        is_first = False
        if opening == "{":
            if (yield from cursor.need()) not in "'\"":
                raise Mismatch
            key = yield from _read_string(cursor)
            yield from cursor.space()
            yield from cursor.expect(":")
            yield from cursor.space()
            pieces.append(dumps(key) + ": ")
        yield from read_literal(cursor, pieces, depth + 1)
        yield from cursor.space()
        if (yield from cursor.need()) == ",":
            cursor.advance(1)
        elif (yield from cursor.need()) != closing:
            raise Mismatch


def _read_string(cursor: Cursor) -> Step[str]:
    quote = cursor.advance(1)
    ahead = yield from cursor.look(2)
    if ahead == quote * 2:
        cursor.advance(2)
        return (yield from _read_string_body(cursor, quote * 3))
    return (yield from _read_string_body(cursor, quote))


def _read_string_body(cursor: Cursor, ending: str) -> Step[str]:
    pieces: list[str] = []
    while True:
        pieces.append(cursor.run(ending[0] + "\\"))
        char = yield from cursor.need()
        if char == "\\":
            piece = yield from _read_escape(cursor)
            pieces.append(piece)
        elif char == ending[0]:
            closed = yield from cursor.accept(ending)
            if closed:
                return "".join(pieces)
            pieces.append(cursor.advance(1))


def _read_escape(cursor: Cursor) -> Step[str]:
    ahead = yield from cursor.look(2)
    if len(ahead) < 2:
        cursor.advance(len(ahead))
        raise Truncated
    letter = ahead[1]
    if letter in _ESCAPES:
        cursor.advance(2)
        return _ESCAPES[letter]
    if letter in _HEX_LENS:
        width = 2 + _HEX_LENS[letter]
        ahead = yield from cursor.look(width)
        digits = ahead[2:]
        if len(ahead) < width:
            cursor.advance(len(ahead))
            raise Truncated
        code = int(digits, 16) if all(char in "0123456789abcdefABCDEF" for char in digits) else -1
        if 0 <= code <= 0x10FFFF and not 0xD800 <= code <= 0xDFFF:
            cursor.advance(width)
            return chr(code)
    # Python keeps a backslash that starts no escape.
    return cursor.advance(1)


def _read_number(cursor: Cursor) -> Step[str]:
    pieces = []
    while (char := (yield from cursor.peek())) and char in _NUMBER_CHARS:
        pieces.append(cursor.advance(1))
    if not char:
        raise Truncated
    return to_json_number("".join(pieces))


def to_json_number(token: str) -> str:
    """Return the Python number `token` as JSON spells it.

    Raises:
        Mismatch: if it is none.
    """
    sign = "-" if token.startswith("-") else ""
    digits = token.lstrip("+-") if len(token) - len(token.lstrip("+-")) <= 1 else ""
    plain = digits.replace("_", "")
    if (
        plain[:2] in ("0x", "0X")
        and 2 < len(plain) <= 34
        and all(char in "0123456789abcdefABCDEF" for char in plain[2:])
    ):
        return sign + str(int(plain, 16))
    whole, has_exponent, exponent = plain.replace("E", "e").partition("e")
    if whole.startswith("."):
        whole = "0" + whole
    if whole.endswith("."):
        whole += "0"
    number = sign + whole + has_exponent + exponent
    if not is_number(number):
        raise Mismatch
    return number
