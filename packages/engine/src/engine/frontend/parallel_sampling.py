"""One request for n completions becomes n sequences that share a prompt; the prefix cache does the sharing.

Each sequence samples by its own seed, counted up from the request's, so that a seeded request gives the same
n completions every time.
"""

from __future__ import annotations

import msgspec

from engine.types.sampling_params import INT64_MAX, INT64_MIN, SamplingParams


def build_sequence_params(params: SamplingParams) -> list[SamplingParams]:
    """Return the parameters of each of the n sequences.

    Prompt logprobs are the same for all of them: only the first computes them.
    """
    if params.n == 1:
        return [params]
    return [
        msgspec.structs.replace(
            params,
            n=1,
            seed=None if params.seed is None else _wrap_int64(params.seed + index),
            prompt_logprobs=params.prompt_logprobs if index == 0 else None,
        )
        for index in range(params.n)
    ]


def build_sequence_ids(internal_id: str, n: int) -> list[str]:
    """Return the core's ids of the n sequences of one request."""
    return [internal_id] if n == 1 else [f"{internal_id}-{index}" for index in range(n)]


def _wrap_int64(value: int) -> int:
    return value if value <= INT64_MAX else value - INT64_MAX - 1 + INT64_MIN
