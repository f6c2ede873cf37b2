"""Logprobs in OpenAI's two shapes, from positions as the engine gives them.

A token that adds nothing to the text (a special token left out of it, the token that ended the sequence)
has no bytes, so that the bytes of all entries joined are the text.
"""

from __future__ import annotations

import codecs
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from engine.types.outputs import CompletionOutput, Logprob, PositionLogprobs

from server.protocol.chat import TokenCandidate, TokenLogprob
from server.protocol.completion import CompletionLogprobs

MAX_ADDED_TOKENS = 4
"""Tokens that a tokenizer may put before a prompt."""

_Utf8Decoder = codecs.getincrementaldecoder("utf-8")


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenStyle:
    """How tokens are written."""

    special_token_ids: frozenset[int]
    """Those that the text leaves out."""
    keeps_stop_token: bool = False
    """Whether the token that ends a sequence is part of its text."""
    as_ids: bool = False
    """Write `token_id:<id>` in place of text."""

    def name(self, token_id: int, logprob: Logprob) -> str:
        """Return a token as text by itself."""
        if self.as_ids or logprob.decoded_token is None:
            return f"token_id:{token_id}"
        return logprob.decoded_token


def build_chat_logprobs(output: CompletionOutput, num_top: int, style: TokenStyle) -> list[TokenLogprob]:
    """Return an entry per token of an output.

    Args:
        num_top: candidates asked for; 0 lists none.
    """
    positions = output.logprobs or []
    return [
        _build_entry(position, _get_text_bytes(output, i, style), num_top, style)
        for i, position in enumerate(positions)
    ]


def build_prompt_logprobs(
    positions: Sequence[PositionLogprobs | None] | None,
) -> list[Mapping[int, Mapping[str, Any]] | None] | None:
    """Return prompt logprobs as vLLM's clients read them."""
    if positions is None:
        return None
    return [
        None
        if position is None
        else {
            token_id: {"logprob": entry.logprob, "rank": entry.rank, "decoded_token": entry.decoded_token}
            for token_id, entry in position.items()
        }
        for position in positions
    ]


class CompletionLogprobsWriter:
    """Columns of one completion, from its prompt (with `echo`) to its end; offsets go on across chunks."""

    def __init__(self, num_top: int, style: TokenStyle) -> None:
        self._num_top = num_top
        self._style = style
        self._offset = 0
        self._decode = _Utf8Decoder("replace").decode

    def write_prompt(
        self,
        token_ids: Sequence[int],
        positions: Sequence[PositionLogprobs | None],
        pieces: Sequence[str],
        text: str,
    ) -> CompletionLogprobs:
        """Return the columns of the prompt.

        Args:
            token_ids: of the prompt.
            positions: the first is None.
            pieces: text of each token; tokens that the tokenizer put around `text` add nothing to it.
            text: the prompt as the answer shows it.
        """
        columns = _new_columns()
        lengths = _measure_pieces(pieces, text)
        for token_id, position, piece, length in zip(token_ids, positions, pieces, lengths, strict=True):
            columns.text_offset.append(self._offset)
            self._offset += length
            if position is None:
                columns.tokens.append(f"token_id:{token_id}" if self._style.as_ids else piece)
                columns.token_logprobs.append(None)
                columns.top_logprobs.append(None)
            else:
                self._add(columns, position)
        self._offset = len(text)
        return columns

    def write(self, output: CompletionOutput) -> CompletionLogprobs:
        """Return the columns of the tokens of an output; each output is written once."""
        columns = _new_columns()
        for i, position in enumerate(output.logprobs or []):
            columns.text_offset.append(self._offset)
            self._offset += len(self._decode(_get_text_bytes(output, i, self._style)))
            self._add(columns, position)
        return columns

    def _add(self, columns: CompletionLogprobs, position: PositionLogprobs) -> None:
        token_id, sampled = next(iter(position.items()))
        columns.tokens.append(_name_exactly(token_id, sampled, self._style))
        columns.token_logprobs.append(sampled.logprob)
        if self._num_top == 0:
            columns.top_logprobs.append(None)
            return
        ranked = sorted(position.items(), key=_by_logprob)
        columns.top_logprobs.append(
            {_name_exactly(token_id, entry, self._style): entry.logprob for token_id, entry in ranked}
        )


def join_logprobs(first: CompletionLogprobs, second: CompletionLogprobs) -> CompletionLogprobs:
    """Return the columns of one stretch followed by those of the next."""
    return CompletionLogprobs(
        text_offset=first.text_offset + second.text_offset,
        token_logprobs=first.token_logprobs + second.token_logprobs,
        tokens=first.tokens + second.tokens,
        top_logprobs=first.top_logprobs + second.top_logprobs,
    )


def _build_entry(position: PositionLogprobs, text: bytes, num_top: int, style: TokenStyle) -> TokenLogprob:
    token_id, sampled = next(iter(position.items()))
    ranked = sorted(position.items(), key=_by_logprob) if num_top else []
    return TokenLogprob(
        token=style.name(token_id, sampled),
        logprob=sampled.logprob,
        bytes=list(text) if sampled.token_bytes is not None else None,
        top_logprobs=[
            TokenCandidate(
                token=style.name(candidate_id, entry),
                logprob=entry.logprob,
                bytes=None if entry.token_bytes is None else list(entry.token_bytes),
            )
            for candidate_id, entry in ranked
        ],
    )


def _get_text_bytes(output: CompletionOutput, index: int, style: TokenStyle) -> bytes:
    """What a token adds to the text."""
    assert output.logprobs is not None
    token_id, entry = next(iter(output.logprobs[index].items()))
    if token_id in style.special_token_ids:
        return b""
    is_last = output.finish_reason == "stop" and index == len(output.logprobs) - 1
    if is_last and not isinstance(output.stop_reason, str) and not style.keeps_stop_token:
        return b""
    return entry.token_bytes or b""


def _measure_pieces(pieces: Sequence[str], text: str) -> list[int]:
    """Characters that each token of the prompt adds to the text shown."""
    lengths = [len(piece) for piece in pieces]
    if "".join(pieces) == text:
        return lengths
    # The tokenizer put tokens before or behind the text (begin and end of sequence): they show nothing.
    for before in range(min(MAX_ADDED_TOKENS, len(pieces)) + 1):
        rest = "".join(pieces[before:])
        if not rest.startswith(text):
            continue
        behind = len(rest) - len(text)
        for i in reversed(range(before, len(pieces))):
            cut = min(behind, lengths[i])
            lengths[i] -= cut
            behind -= cut
        return [0] * before + lengths[before:]
    # A tokenizer that changes the text (blanks, case) leaves no exact place; offsets stay within it.
    ends = [min(len(text), end) for end in accumulate(lengths)]
    return [end - start for start, end in zip([0, *ends], ends, strict=False)]


def _name_exactly(token_id: int, entry: Logprob, style: TokenStyle) -> str:
    """As `name`, but different bytes have different names: candidates are keys here."""
    name = style.name(token_id, entry)
    if "\ufffd" in name and entry.token_bytes is not None:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in entry.token_bytes)
    return name


def _new_columns() -> CompletionLogprobs:
    return CompletionLogprobs(text_offset=[], token_logprobs=[], tokens=[], top_logprobs=[])


def _by_logprob(item: tuple[int, Logprob]) -> float:
    return -item[1].logprob
