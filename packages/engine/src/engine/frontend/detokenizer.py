"""Token ids in, text out, one token at a time: a byte-level decoder per sequence, one table per tokenizer.

Every token is a string of bytes; characters may begin in one token and end in another. The decoder releases a
character when its last byte has come, and U+FFFD as soon as bytes can no longer become one. Whole text is the
same thing fed at once, so streamed and whole never differ. Knows nothing of stop strings or of requests.
"""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.frontend.tokenizer import Tokenizer

_Utf8Decoder = codecs.getincrementaldecoder("utf-8")


class TokenText:
    """What each token of one tokenizer contributes to text, looked up once per id; shared by all requests."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.all_bytes = _TokenBytes(tokenizer)
        """Id -> bytes of the token, special tokens as their own text."""
        self.plain_bytes = _PlainTokenBytes(tokenizer)
        """The same with special tokens as nothing."""
        self.special_token_ids = tokenizer.special_token_ids


class IncrementalDetokenizer:
    """Turns the tokens of one sequence into text; append-only.

    Args:
        table: the tokenizer's table.
        skip_special_tokens: leave special tokens out.
        spaces_between_special_tokens: put one space between two special tokens that follow each other.
    """

    __slots__ = ("_decode", "_last_is_special", "_spaced", "_special_token_ids", "_token_bytes")

    def __init__(
        self,
        table: TokenText,
        *,
        skip_special_tokens: bool = True,
        spaces_between_special_tokens: bool = True,
    ) -> None:
        self._token_bytes = table.plain_bytes if skip_special_tokens else table.all_bytes
        self._spaced = spaces_between_special_tokens and not skip_special_tokens
        self._special_token_ids = table.special_token_ids
        self._last_is_special = False
        self._decode = _Utf8Decoder("replace").decode

    def feed(self, token_id: int) -> str:
        """Return the text that this token completes; empty while a character is unfinished.

        Raises:
            ValueError: the id is negative.
        """
        data = self._token_bytes[token_id]
        if self._spaced:
            is_special = token_id in self._special_token_ids
            if is_special and self._last_is_special:
                data = b" " + data
            self._last_is_special = is_special
        return self._decode(data)

    def finish(self) -> str:
        """Return what is left at the end: U+FFFD where the last character is unfinished, else nothing."""
        return self._decode(b"", True)


def decode_whole(
    table: TokenText,
    token_ids: list[int],
    *,
    skip_special_tokens: bool = True,
    spaces_between_special_tokens: bool = True,
) -> str:
    """Return the text of a whole sequence: the joined deltas of an `IncrementalDetokenizer`."""
    detokenizer = IncrementalDetokenizer(
        table,
        skip_special_tokens=skip_special_tokens,
        spaces_between_special_tokens=spaces_between_special_tokens,
    )
    return "".join(map(detokenizer.feed, token_ids)) + detokenizer.finish()


class _TokenBytes(dict[int, bytes]):
    """Filled on first use: a vocabulary of 150,000 tokens is not walked at start-up."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__()
        self._tokenizer = tokenizer

    def __missing__(self, token_id: int) -> bytes:
        data = self[token_id] = self._look_up(token_id)
        return data

    def _look_up(self, token_id: int) -> bytes:
        if token_id < 0:
            raise ValueError(f"token id {token_id!r} is negative")
        # Embeddings are often padded past the tokenizer's vocabulary; such ids stand for no text.
        if token_id >= self._tokenizer.vocab_size:
            return b""
        return self._tokenizer.token_bytes(token_id)


class _PlainTokenBytes(_TokenBytes):
    def _look_up(self, token_id: int) -> bytes:
        if token_id in self._tokenizer.special_token_ids:
            return b""
        return super()._look_up(token_id)
