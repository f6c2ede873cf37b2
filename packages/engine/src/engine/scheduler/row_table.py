"""Counters of running requests as numpy columns, indexed by row.

Steady decode reads and writes these columns for the whole batch at once and touches no object of a request.
Knows numbers only; what they mean for scheduling is decided by the scheduler.
"""

from __future__ import annotations

import heapq

import numpy as np
from numpy.typing import NDArray

from engine.types.request import NO_ROW, Request, RequestStatus

_NO_TOKEN = -1
_INITIAL_STOP_WIDTH = 4


class RowTable:
    """Rows 0 to `num_rows - 1`, the lowest free one given first, so that a small load touches little memory.

    Columns (a row's entry means something only while the row is taken):
        computed: tokens whose keys and values are scheduled or stand in the cache.
        total: known tokens, prompt and output.
        max_total: the sequence ends when `total` reaches it.
        stop_from: smallest `total` at which a stop id ends the sequence (`min_tokens`).
        is_live: False once the request ended while its step is still in flight.
        stop_ids: its end-of-sequence and stop ids, padded with -1.
        token_ids: every known token.
    """

    def __init__(self, num_rows: int, max_model_len: int) -> None:
        self.computed: NDArray[np.int64] = np.zeros(num_rows, dtype=np.int64)
        self.total: NDArray[np.int64] = np.zeros(num_rows, dtype=np.int64)
        self.max_total: NDArray[np.int64] = np.zeros(num_rows, dtype=np.int64)
        self.stop_from: NDArray[np.int64] = np.zeros(num_rows, dtype=np.int64)
        self.is_live: NDArray[np.bool_] = np.zeros(num_rows, dtype=np.bool_)
        self.stop_ids: NDArray[np.int64] = np.full((num_rows, _INITIAL_STOP_WIDTH), _NO_TOKEN, dtype=np.int64)
        # zeros, not full: untouched pages of a large table cost no memory.
        self.token_ids: NDArray[np.int32] = np.zeros((num_rows, max_model_len), dtype=np.int32)
        self.requests: list[Request | None] = [None] * num_rows
        self._free = list(range(num_rows))

    @property
    def num_free(self) -> int:
        """Rows that can be taken."""
        return len(self._free)

    def peek(self) -> int:
        """Return the row that `take` will give; the caller checked `num_free`."""
        return self._free[0]

    def take(self, request: Request, num_computed_tokens: int) -> int:
        """Give the request a row and move its tokens there."""
        row = heapq.heappop(self._free)
        num_tokens = len(request.token_ids)
        self.token_ids[row, :num_tokens] = request.token_ids
        self.total[row] = num_tokens
        self.computed[row] = num_computed_tokens
        self.max_total[row] = request.max_total_tokens
        self.stop_from[row] = request.num_prompt_tokens + request.params.min_tokens + 1
        self.is_live[row] = True
        self._set_stop_ids(row, request.stop_token_ids)
        self.requests[row] = request
        request.row = row
        request.status = RequestStatus.RUNNING
        request.token_ids = _EMPTY
        return row

    def save_tokens(self, request: Request) -> None:
        """Move the known tokens of a request that loses its row back to it."""
        request.token_ids = self.token_ids[request.row, : self.total[request.row]].copy()

    def give_back(self, request: Request) -> None:
        """Free the request's row for another."""
        row = request.row
        self.is_live[row] = False
        self.requests[row] = None
        heapq.heappush(self._free, row)
        request.row = NO_ROW

    def computed_token_ids(self, row: int) -> NDArray[np.int32]:
        """Return the tokens of a row whose keys and values stand in its blocks."""
        return self.token_ids[row, : min(self.computed[row], self.total[row])]

    def find_stops(self, rows: NDArray[np.int64], token_ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which rows got one of their stop ids where `total`, with it, is past `min_tokens`."""
        is_stop: NDArray[np.bool_] = (self.stop_ids[rows] == token_ids[:, None]).any(axis=1)
        return is_stop & (self.total[rows] >= self.stop_from[rows])

    def _set_stop_ids(self, row: int, ids: tuple[int, ...]) -> None:
        width = self.stop_ids.shape[1]
        if len(ids) > width:
            extra = np.full((len(self.stop_ids), len(ids) - width), _NO_TOKEN, dtype=np.int64)
            self.stop_ids = np.hstack([self.stop_ids, extra])
        self.stop_ids[row] = _NO_TOKEN
        self.stop_ids[row, : len(ids)] = ids


_EMPTY: NDArray[np.int32] = np.zeros(0, dtype=np.int32)
