"""What the scheduler tells the workers each step: a diff against what they already hold.

Workers keep one row of state per running request (the request table). `SchedulerOutput` says which rows end,
which begin, which get more blocks, and how many tokens of each row to compute; it never repeats what a worker
can carry forward itself.
"""

from __future__ import annotations

import msgspec

from engine.types.sampling_params import SamplingParams


class NewRow(msgspec.Struct, frozen=True, array_like=True):
    """A request that takes a row: newly admitted, or resumed after preemption.

    `token_ids` holds every known token: the prompt, then what was generated before a preemption.
    """

    row: int
    request_id: str
    token_ids: list[int]
    num_prompt_tokens: int
    num_computed_tokens: int
    """Tokens whose KV already stands in `block_ids` (prefix hit)."""
    block_ids: list[int]
    """Blocks of this row in order, covering `num_computed_tokens` plus this step's tokens."""
    params: SamplingParams
    seed: int
    """Always given: the request's own, or one drawn by the core; with the position it fixes the noise."""
    stop_token_ids: list[int] = []
    """End-of-sequence and stop ids, banned while fewer than `params.min_tokens` are generated."""
    bad_words_token_ids: list[list[int]] = []


class RowBlocks(msgspec.Struct, frozen=True, array_like=True):
    """Blocks appended to a row that already runs."""

    row: int
    block_ids: list[int]


class SchedulerOutput(msgspec.Struct, frozen=True, array_like=True):
    """One step's work, in the order a worker applies it: finished, new, appended blocks, then compute.

    Made by the scheduler only. `rows` and `num_scheduled_tokens` run parallel and give the batch order. A row
    samples in this step exactly if its computed count reaches its known token count with this step's tokens.
    """

    step_id: int
    finished_rows: list[int]
    new_rows: list[NewRow]
    new_blocks: list[RowBlocks]
    rows: list[int]
    num_scheduled_tokens: list[int]

    @property
    def num_tokens(self) -> int:
        """Tokens computed in this step over all rows."""
        return sum(self.num_scheduled_tokens)
