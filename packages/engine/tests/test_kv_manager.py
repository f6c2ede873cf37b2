"""Prefix reuse against a brute-force matcher, and the manager's promises to the scheduler."""

from __future__ import annotations

import random

import numpy as np
import pytest
from engine.kv_cache.manager import KVCacheManager
from engine.types.request import Request
from engine.types.sampling_params import SamplingParams

SIZE = 4


def build_manager(num_blocks: int = 64, **arguments: object) -> KVCacheManager:
    return KVCacheManager(num_blocks=num_blocks, block_size=SIZE, num_rows=8, **arguments)  # type: ignore[arg-type]


def build_request(ids: list[int], *, salt: str | None = None, **params: object) -> Request:
    return Request(
        "r",
        np.array(ids, dtype=np.int32),
        SamplingParams(**params),  # type: ignore[arg-type]
        arrival_time_s=0.0,
        max_total_tokens=1000,
        seed=0,
        cache_salt=salt,
    )


def run_through(kv: KVCacheManager, request: Request, row: int = 0) -> int:
    """Admit a request, compute all of it and free it; return how many tokens were found."""
    blocks = kv.get_computed_blocks(request)
    assert kv.allocate_slots(row, len(request.token_ids), blocks) is not None
    request.row = row
    kv.cache_blocks(request, len(request.token_ids))
    kv.free(request, request.token_ids)
    return len(blocks) * SIZE


@pytest.mark.parametrize("seed", range(5))
def test_hits_equal_a_brute_force_matcher(seed: int) -> None:
    rng = random.Random(seed)
    kv = build_manager(num_blocks=4000)
    seen: list[tuple[str | None, list[int]]] = []
    num_hits = 0
    for _ in range(120):
        ids = [rng.randrange(2) for _ in range(rng.randrange(1, 24))]
        salt = rng.choice([None, None, "a"])
        best = 0
        for other_salt, other in seen:
            common = 0
            while (
                other_salt == salt
                and common + SIZE <= min(len(other), len(ids) - 1)
                and other[: common + SIZE] == ids[: common + SIZE]
            ):
                common += SIZE
            best = max(best, common)
        assert run_through(kv, build_request(ids, salt=salt)) == best
        seen.append((salt, ids))
        num_hits += best
    assert num_hits > 0


def test_last_token_is_always_computed() -> None:
    kv = build_manager()
    ids = list(range(2 * SIZE))
    assert run_through(kv, build_request(ids)) == 0
    assert run_through(kv, build_request(ids)) == SIZE
    assert run_through(kv, build_request([*ids, 1])) == 2 * SIZE


def test_generated_tokens_are_found_after_their_request_ended() -> None:
    kv = build_manager()
    request = build_request([1] * 6)
    kv.allocate_slots(0, 11, kv.get_computed_blocks(request))
    request.row = 0
    history = np.array([1] * 6 + [2, 3, 4, 5, 6], dtype=np.int32)
    kv.free(request, history)
    assert run_through(kv, build_request([*history.tolist(), 9])) == 8


def test_prompt_logprobs_and_skipping_read_nothing_but_leave_content() -> None:
    kv = build_manager()
    ids = [1] * 9
    assert run_through(kv, build_request(ids, prompt_logprobs=1)) == 0
    assert run_through(kv, build_request(ids, prompt_logprobs=1)) == 0
    assert run_through(kv, build_request(ids, skip_reading_prefix_cache=True)) == 0
    assert run_through(kv, build_request(ids)) == 8


def test_prefix_caching_off_finds_nothing() -> None:
    kv = build_manager(enable_prefix_caching=False)
    assert run_through(kv, build_request([1] * 9)) == 0
    assert run_through(kv, build_request([1] * 9)) == 0
    kv.record_lookup(9, 0)
    assert kv.prefix_counter.take() == (0, 0)
    assert kv.pool.num_cached == 0


def test_tail_is_evicted_before_the_head() -> None:
    kv = build_manager(num_blocks=7)
    assert run_through(kv, build_request([1] * 24)) == 0
    # One block goes to another request: the last of the six.
    kv.allocate_slots(1, 1)
    assert len(kv.get_computed_blocks(build_request([1] * 25))) == 5


def test_untrusted_content_is_not_found_again() -> None:
    kv = build_manager()
    request = build_request([1] * 9)
    kv.allocate_slots(0, 9, [])
    kv.get_computed_blocks(request)
    request.row = 0
    kv.cache_blocks(request, 9)
    assert kv.pool.num_cached == 2
    kv.free(request, request.token_ids, is_reusable=False)
    assert kv.pool.num_cached == 0


def test_reset_also_binds_what_runs_and_what_waits() -> None:
    kv = build_manager()
    running, waiting = build_request([1] * 9), build_request([2] * 9)
    assert run_through(kv, build_request([2] * 9)) == 0
    kv.allocate_slots(0, 9, kv.get_computed_blocks(running))
    running.row = 0
    kv.cache_blocks(running, 4)
    assert len(kv.get_computed_blocks(waiting)) == 2
    kv.reset_prefix_cache()
    kv.cache_blocks(running, 9)
    kv.free(running, running.token_ids)
    assert kv.pool.num_cached == 0
    assert kv.get_computed_blocks(waiting) == []
    assert run_through(kv, waiting) == 0
    assert run_through(kv, build_request([2] * 9)) == 8


def test_shortage_changes_nothing() -> None:
    kv = build_manager(num_blocks=4)
    assert kv.allocate_slots(0, 8) == [1, 2]
    before = kv.pool.free_blocks()
    assert kv.allocate_slots(1, 8) is None
    assert kv.allocate_slots(1, 4, num_reserved=1) is None
    assert kv.pool.free_blocks() == before
    assert kv.block_ids(1) == []
    assert kv.allocate_slots(0, 9) == [3]
    assert kv.usage == 1.0


def test_found_but_unowned_blocks_count_as_needed() -> None:
    kv = build_manager(num_blocks=4)
    run_through(kv, build_request([1] * 12))
    request = build_request([1] * 13)
    blocks = kv.get_computed_blocks(request)
    assert len(blocks) == 3
    # Three found, one more needed, but taking the found ones empties the pool.
    assert kv.allocate_slots(0, 13, blocks) is None
    assert kv.pool.num_free == 3
