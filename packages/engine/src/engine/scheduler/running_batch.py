"""The running requests in the policy's order, as parallel columns.

Knows rows, ids and order keys; which of them are scheduled, preempted or ended is decided by the scheduler.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from itertools import compress

import numpy as np
from numpy.typing import NDArray

from engine.scheduler.queue import OrderKey
from engine.types.request import Request


class RunningBatch:
    """One place per running request; changed by the scheduler alone.

    The lists are replaced, never changed, since schedules and outstanding steps share them.
    """

    __slots__ = ("_has_gaps", "_order_keys", "request_ids", "rows", "rows_list")

    def __init__(self) -> None:
        self.rows: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self.rows_list: list[int] = []
        """The same as a list."""
        self.request_ids: list[str] = []
        self._order_keys: list[OrderKey] = []
        self._has_gaps = False

    def insert(self, requests: Sequence[Request]) -> None:
        """Put in newly running requests, each at its place in the policy's order."""
        rows_list, request_ids = list(self.rows_list), list(self.request_ids)
        for request in requests:
            place = bisect.bisect(self._order_keys, request.order_key)
            rows_list.insert(place, request.row)
            request_ids.insert(place, request.request_id)
            self._order_keys.insert(place, request.order_key)
        self.rows = np.array(rows_list, dtype=np.int64)
        self.rows_list, self.request_ids = rows_list, request_ids

    def mark_gap(self) -> None:
        """Note that a row of the batch no longer runs."""
        self._has_gaps = True

    def close_gaps(self, is_live: NDArray[np.bool_]) -> None:
        """Drop rows that no longer run. Must happen before such a row is taken by another request.

        Args:
            is_live: by row of the table, whether its request goes on.
        """
        if not self._has_gaps:
            return
        is_kept = is_live[self.rows]
        kept = is_kept.tolist()
        self.rows = self.rows[is_kept]
        self.rows_list = list(compress(self.rows_list, kept))
        self.request_ids = list(compress(self.request_ids, kept))
        self._order_keys = list(compress(self._order_keys, kept))
        self._has_gaps = False
