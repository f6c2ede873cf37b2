"""Log probabilities as host lists, from raw logits.

Values are floored at -9999, so that they are always finite and valid JSON. Letters: B lines, V vocabulary.
"""

from __future__ import annotations

import kernels
import torch

from engine.types.runner_output import TokenLogprobs
from engine.types.sampling_params import SamplingParams

FLOOR = -9999.0


def num_candidates(params: SamplingParams, vocab_size: int) -> int:
    """Return how many most likely tokens a request wants beside the sampled one."""
    return _count(params.logprobs, vocab_size)


def num_prompt_candidates(params: SamplingParams, vocab_size: int) -> int:
    """Return how many most likely tokens a request wants per prompt token."""
    return _count(params.prompt_logprobs, vocab_size)


def compute_logprobs(logits_BV: torch.Tensor, token_ids_B: torch.Tensor, num_top: int) -> TokenLogprobs:
    """Return, per line, the token's own logprob and rank and the `num_top` most likely tokens."""
    own, ranks, top_ids, top_logprobs = kernels.gather_logprobs(logits_BV, token_ids_B, num_top)
    ids = torch.cat([token_ids_B[:, None], top_ids], dim=1)
    values = torch.cat([own[:, None], top_logprobs], dim=1).clamp_min(FLOOR)
    return TokenLogprobs(ids.tolist(), values.tolist(), ranks.tolist())


def compute_chosen_logprobs(
    logits_BV: torch.Tensor, token_ids_B: torch.Tensor, chosen_ids: list[int]
) -> TokenLogprobs:
    """Return, per line, the token's own logprob and rank and those of `chosen_ids`, in their order."""
    own, ranks, _, _ = kernels.gather_logprobs(logits_BV, token_ids_B, 0)
    chosen = torch.tensor(chosen_ids, device=logits_BV.device).expand(logits_BV.shape[0], -1)
    normalizer = torch.logsumexp(logits_BV.float(), dim=-1, keepdim=True)
    chosen_logprobs = logits_BV.float().gather(1, chosen) - normalizer
    ids = torch.cat([token_ids_B[:, None], chosen], dim=1)
    values = torch.cat([own[:, None], chosen_logprobs], dim=1).clamp_min(FLOOR)
    return TokenLogprobs(ids.tolist(), values.tolist(), ranks.tolist())


def slice_candidates(logprobs: TokenLogprobs, line: int, num_top: int) -> TokenLogprobs:
    """Return one line with at most `num_top` candidates, from a result computed with more."""
    end = 1 + num_top
    return TokenLogprobs(
        [logprobs.token_ids[line][:end]], [logprobs.logprobs[line][:end]], [logprobs.ranks[line]]
    )


def _count(asked: int | None, vocab_size: int) -> int:
    if asked is None:
        return 0
    return vocab_size if asked == -1 else min(asked, vocab_size)
