"""Who comes next: the order that a policy gives to requests, and the queue of those that wait."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping

from engine.types.request import Request, RequestStatus

OrderKey = tuple[float, ...]


def fcfs_key(request: Request, sequence_number: int) -> OrderKey:
    """First come, first served: in the order in which the core received them."""
    return (sequence_number,)


def priority_key(request: Request, sequence_number: int) -> OrderKey:
    """Lower priority values first, then arrival, then the order of receipt."""
    return (request.priority, request.arrival_time_s, sequence_number)


POLICIES: Mapping[str, Callable[[Request, int], OrderKey]] = {"fcfs": fcfs_key, "priority": priority_key}
"""By the name that `scheduler.policy` gives."""


class WaitingQueue:
    """Requests without a row, smallest order key first.

    A preempted request comes back under its old key, and so stands before everything that came later.
    Finished requests are dropped when they reach the top, or are the greater part.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[OrderKey, Request]] = []
        self._len = 0

    def __len__(self) -> int:
        return self._len

    def push(self, request: Request) -> None:
        """Put in a waiting request; its order key is set and unique."""
        heapq.heappush(self._heap, (request.order_key, request))
        self._len += 1

    def peek(self) -> Request | None:
        """Return the next request, or None."""
        self._drop_finished()
        return self._heap[0][1] if self._heap else None

    def pop(self) -> Request:
        """Take the next request; the caller has seen it by `peek`."""
        self._drop_finished()
        self._len -= 1
        return heapq.heappop(self._heap)[1]

    def forget_one(self) -> None:
        """Count one waiting request less: it was just marked as finished."""
        self._len -= 1
        # Under strict priority the end of the heap may never come to the top: sweep when half is dead.
        if len(self._heap) > 2 * self._len:
            self._heap = [entry for entry in self._heap if entry[1].status is RequestStatus.WAITING]
            heapq.heapify(self._heap)

    def requests(self) -> list[Request]:
        """Return all waiting requests in order; for checks."""
        return [request for _, request in sorted(self._heap) if request.status is RequestStatus.WAITING]

    def _drop_finished(self) -> None:
        while self._heap and self._heap[0][1].status is not RequestStatus.WAITING:
            heapq.heappop(self._heap)
