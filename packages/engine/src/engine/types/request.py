"""One request as the control plane holds it: what is asked, and what changes rarely.

Counters that move every step (computed, total, limits) are not here: they are columns of the scheduler's row
table, so that steady decode touches no object of this type. Knows nothing of text or of tensors.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from engine.types.sampling_params import SamplingParams

NO_ROW = -1


class RequestStatus(IntEnum):
    """Where a request stands."""

    WAITING = 0
    """In the queue: new, or preempted."""
    RUNNING = 1
    """Holds a row and blocks."""
    FINISHED = 2
    """Ended for whatever reason; it may hold its row until a step in flight returns."""


class Request:
    """A sequence to generate. Made by the core, changed by the scheduler and the cache manager only.

    Invariant: a running request has a row and the row table holds its tokens; any other has `row == NO_ROW`
    and `token_ids` is the truth.
    """

    __slots__ = (
        "arrival_time_s",
        "bad_words_token_ids",
        "block_hashes",
        "cache_salt",
        "eos_token_ids",
        "hash_epoch",
        "max_total_tokens",
        "num_preemptions",
        "num_prompt_logprobs_sent",
        "num_prompt_tokens",
        "order_key",
        "params",
        "priority",
        "request_id",
        "row",
        "seed",
        "status",
        "stop_token_ids",
        "token_ids",
        "was_scheduled",
    )

    def __init__(
        self,
        request_id: str,
        token_ids: NDArray[np.int32],
        params: SamplingParams,
        *,
        arrival_time_s: float,
        max_total_tokens: int,
        seed: int,
        eos_token_ids: tuple[int, ...] = (),
        bad_words_token_ids: tuple[tuple[int, ...], ...] = (),
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> None:
        self.request_id = request_id
        self.token_ids = token_ids
        """Every known token while the request holds no row: the prompt, then what was generated before."""
        self.num_prompt_tokens = len(token_ids)
        self.params = params
        self.arrival_time_s = arrival_time_s
        self.max_total_tokens = max_total_tokens
        """Prompt and output together; the sequence ends with LENGTH there."""
        self.seed = seed
        self.eos_token_ids = eos_token_ids
        self.stop_token_ids = tuple(dict.fromkeys((*eos_token_ids, *params.stop_token_ids)))
        """End-of-sequence and stop ids together."""
        self.bad_words_token_ids = bad_words_token_ids
        self.priority = priority
        self.cache_salt = cache_salt
        self.status = RequestStatus.WAITING
        self.row = NO_ROW
        self.order_key: tuple[float, ...] = ()
        """Place in the policy's order, set once when it is queued: the smallest key runs first."""
        self.was_scheduled = False
        self.num_preemptions = 0
        self.num_prompt_logprobs_sent = 0
        self.block_hashes: list[bytes] = []
        """Chained hashes of its leading full blocks, as far as they were needed."""
        self.hash_epoch = 0
        """Epoch of the hash root that `block_hashes` chain from."""
