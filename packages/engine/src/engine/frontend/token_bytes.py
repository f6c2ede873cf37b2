"""The exact bytes that each token of a vocabulary stands for in the middle of a text.

Byte-level vocabularies spell each byte as a printable character, SentencePiece vocabularies write a blank as
a lower block and single bytes as `<0xNN>`, WordPiece marks the pieces that continue a word. Which of these it
is follows from the tokenizer's decoder. Knows nothing of encoding text.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable
from typing import Any

from tokenizers import Tokenizer as Backend

SPACE_MARK = "\u2581"
"""How SentencePiece writes a blank."""

_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")

PieceToBytes = Callable[[str], bytes]


@functools.cache
def get_byte_alphabet() -> dict[int, str]:
    """Return the printable character that stands for each byte in byte-level vocabularies.

    Source: GPT-2's encoder: printable bytes stand for themselves, the others for the characters from 256 on.
    """
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)]
    alphabet = {byte: chr(byte) for byte in printable}
    hidden = [byte for byte in range(256) if byte not in alphabet]
    return alphabet | {byte: chr(256 + index) for index, byte in enumerate(hidden)}


def choose_piece_to_bytes(backend: Backend) -> PieceToBytes:
    """Return the function that turns a piece of this tokenizer's vocabulary into bytes."""
    steps = _get_decoder_steps(backend)
    kinds = [step.get("type") for step in steps]
    if "ByteLevel" in kinds:
        return _from_byte_level
    if "WordPiece" in kinds:
        prefix = str(steps[kinds.index("WordPiece")].get("prefix", "##"))
        return functools.partial(_from_word_piece, prefix=prefix)
    has_space_mark = "Metaspace" in kinds or any(_is_space_mark(step) for step in steps)
    return functools.partial(
        _from_sentence_piece, has_bytes="ByteFallback" in kinds, has_space_mark=has_space_mark
    )


def _get_decoder_steps(backend: Backend) -> list[dict[str, Any]]:  # the library's own JSON
    decoder = backend.decoder
    if decoder is None:
        return []
    tree = json.loads(decoder.__getstate__())
    return tree["decoders"] if tree.get("type") == "Sequence" else [tree]


def _is_space_mark(step: dict[str, Any]) -> bool:  # as above
    return step.get("type") == "Replace" and step.get("pattern") == {"String": SPACE_MARK}


def _from_byte_level(piece: str) -> bytes:
    byte_of = _get_bytes_of_alphabet()
    try:
        return bytes([byte_of[character] for character in piece])
    except KeyError:
        # Not spelled in the alphabet: the decoder takes such a piece as it stands.
        return piece.encode("utf-8")


def _from_sentence_piece(piece: str, *, has_bytes: bool, has_space_mark: bool) -> bytes:
    if has_bytes and (match := _BYTE_PIECE.fullmatch(piece)):
        return bytes([int(match[1], 16)])
    return (piece.replace(SPACE_MARK, " ") if has_space_mark else piece).encode("utf-8")


def _from_word_piece(piece: str, *, prefix: str) -> bytes:
    return (piece[len(prefix) :] if piece.startswith(prefix) else f" {piece}").encode("utf-8")


@functools.cache
def _get_bytes_of_alphabet() -> dict[str, int]:
    return {character: byte for byte, character in get_byte_alphabet().items()}
