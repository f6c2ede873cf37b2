"""Runs the ranks of a fake tensor-parallel group on threads, so that one test holds them all."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from engine.distributed.collectives import Exchange, FakeGroup
from engine.distributed.groups import use_groups

Result = TypeVar("Result")


def run_ranks(world_size: int, body: Callable[[int], Result]) -> list[Result]:
    """Return each rank's result; within `body` the tensor group is the rank's own.

    Raises whatever the first failing rank raised.
    """
    exchange = Exchange(world_size)
    results: dict[int, Result] = {}
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            with use_groups(FakeGroup(rank, world_size, exchange=exchange)):
                results[rank] = body(rank)
        except BaseException as error:  # carried to the test's own thread
            errors.append(error)
            exchange.abort()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(world_size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return [results[rank] for rank in range(world_size)]
