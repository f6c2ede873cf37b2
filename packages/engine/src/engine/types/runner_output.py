"""What the workers hand back each step: host lists, rows as in the `SchedulerOutput` they answer."""

from __future__ import annotations

import msgspec


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """Log probabilities of consecutive tokens of one row.

    Entry i describes token i: `token_ids[i][0]` is the sampled (or prompt) token itself and the rest are the
    most likely ones in falling order, or the requested ids; `ranks[i]` is the 1-based rank of the first.
    Values are finite (floor -9999) and come from the raw logits, before penalties and temperature.
    """

    token_ids: list[list[int]]
    logprobs: list[list[float]]
    ranks: list[int]


class RowLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """Logprobs that one row asked for, for the tokens sampled in this step."""

    row: int
    logprobs: TokenLogprobs


class RowPromptLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """Logprobs of a stretch of prompt tokens; entry i describes prompt token `start + i` (the first is 1)."""

    row: int
    start: int
    logprobs: TokenLogprobs


class RowFailure(msgspec.Struct, frozen=True, array_like=True):
    """A row that must end with an error (non-finite logits, a sampled id out of range); others go on."""

    row: int
    message: str


class ModelRunnerOutput(msgspec.Struct, frozen=True, array_like=True):
    """Sampled tokens of one step.

    `rows` lists the rows that sampled, in batch order, with one id each in `sampled_token_ids`. A failed row
    stands in `failures` only. The sparse lists hold only rows that asked.
    """

    step_id: int
    rows: list[int]
    sampled_token_ids: list[int]
    logprobs: list[RowLogprobs] = []
    prompt_logprobs: list[RowPromptLogprobs] = []
    failures: list[RowFailure] = []
