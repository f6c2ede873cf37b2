"""Settings of the `scheduler` group: how much work a step takes and in what order requests run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from engine.config.ranges import NonNegativeInt, PositiveInt


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """The scheduler."""

    policy: Literal["fcfs", "priority"] = "fcfs"
    """`fcfs` or `priority` (lower values first, then arrival)."""
    max_num_seqs: PositiveInt | None = None
    """Requests that run at once (rows of the request table); null lets the platform choose."""
    max_num_batched_tokens: PositiveInt | None = None
    """Token budget of one step; null lets the platform choose."""
    enable_chunked_prefill: bool = True
    """Let a prompt be computed over several steps."""
    long_prefill_token_threshold: NonNegativeInt = 0
    """Most tokens of one prompt per step; 0 is no limit but the budget."""
