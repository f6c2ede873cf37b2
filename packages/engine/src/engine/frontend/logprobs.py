"""Turns logprobs as the core sends them (ids, values, ranks) into what callers read, with text and bytes.

Knows the layout of `TokenLogprobs` and nothing of sampling: values pass through untouched.
"""

from __future__ import annotations

from engine.frontend.detokenizer import IncrementalDetokenizer, TokenText
from engine.types.outputs import Logprob, PositionLogprobs
from engine.types.runner_output import TokenLogprobs


def build_positions(
    logprobs: TokenLogprobs, table: TokenText | None, *, are_ranked: bool
) -> list[PositionLogprobs]:
    """Return one mapping per position, the token itself first.

    Args:
        logprobs: of consecutive tokens of one sequence.
        table: the tokenizer's table; None leaves text and bytes out.
        are_ranked: the candidates are the most likely ones in falling order (else: ids the request named).
    """
    return [
        _build_position(ids, values, rank, table, are_ranked)
        for ids, values, rank in zip(logprobs.token_ids, logprobs.logprobs, logprobs.ranks, strict=True)
    ]


def build_prompt_pieces(token_ids: list[int], table: TokenText) -> list[str]:
    """Return the text of each prompt token; joined they are the prompt's text, special tokens included.

    A character that spans tokens belongs to the one that completes it.
    """
    detokenizer = IncrementalDetokenizer(
        table, skip_special_tokens=False, spaces_between_special_tokens=False
    )
    pieces = [detokenizer.feed(token_id) for token_id in token_ids]
    if pieces:
        pieces[-1] += detokenizer.finish()
    return pieces


def _build_position(
    ids: list[int], values: list[float], rank: int, table: TokenText | None, are_ranked: bool
) -> PositionLogprobs:
    position: PositionLogprobs = {}
    for i, (token_id, value) in enumerate(zip(ids, values, strict=True)):
        if token_id in position:  # the token itself is among the most likely ones
            continue
        data = None if table is None else table.all_bytes[token_id]
        candidate_rank = rank if i == 0 else i if are_ranked else None
        position[token_id] = Logprob(
            logprob=value,
            rank=candidate_rank,
            decoded_token=None if data is None else data.decode("utf-8", "replace"),
            token_bytes=data,
        )
    return position
