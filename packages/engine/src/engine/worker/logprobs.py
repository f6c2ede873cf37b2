"""Logprobs of sampled tokens, for the rows that asked, each with as many candidates as it asked for."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.sampling.logprobs import (
    compute_chosen_logprobs,
    compute_logprobs,
    num_candidates,
    slice_candidates,
)
from engine.types.runner_output import RowLogprobs
from engine.types.sampling_params import SamplingParams


def compute_row_logprobs(
    raw_logits: torch.Tensor,
    token_ids: torch.Tensor,
    rows: list[int],
    params: Sequence[SamplingParams | None],
) -> list[RowLogprobs]:
    """Return one entry per line of `raw_logits`.

    Shapes: `raw_logits` [lines, V], `token_ids` [lines]; `rows` and `params` run parallel to the lines.
    """
    vocab_size = raw_logits.shape[1]
    asked = [0 if p is None else num_candidates(p, vocab_size) for p in params]
    # One pass with the largest count serves all lines.
    common = compute_logprobs(raw_logits, token_ids, max(asked))
    result = []
    for line, (row, p) in enumerate(zip(rows, params, strict=True)):
        if p is not None and p.logprob_token_ids is not None:
            one = slice(line, line + 1)
            chosen = compute_chosen_logprobs(raw_logits[one], token_ids[one], p.logprob_token_ids)
            result.append(RowLogprobs(row, chosen))
        else:
            result.append(RowLogprobs(row, slice_candidates(common, line, asked[line])))
    return result
