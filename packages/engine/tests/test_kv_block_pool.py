"""The free queue against a plain list, and the pool's promises about hashes and the null block."""

from __future__ import annotations

import random

import pytest
from engine.kv_cache.block import NULL_BLOCK_ID, FreeBlockQueue, KVCacheBlock
from engine.kv_cache.block_pool import BlockPool
from hypothesis import given, settings
from hypothesis import strategies as st


@given(st.lists(st.tuples(st.sampled_from(["append", "prepend", "pop", "remove"]), st.integers(0, 9))))
def test_free_queue_equals_a_list(operations: list[tuple[str, int]]) -> None:
    queue, model = FreeBlockQueue(), []
    blocks = [KVCacheBlock(index) for index in range(10)]
    for operation, index in operations:
        block = blocks[index]
        if operation == "pop" and model:
            assert queue.pop() is model.pop(0)
        elif operation == "remove" and block in model:
            queue.remove(block)
            model.remove(block)
        elif operation == "append" and block not in model:
            queue.append(block)
            model.append(block)
        elif operation == "prepend" and block not in model:
            queue.prepend(block)
            model.insert(0, block)
        assert queue.blocks() == model
        assert len(queue) == len(model)


def test_null_block_is_never_handed_out() -> None:
    pool = BlockPool(8)
    assert pool.num_usable == 7
    assert NULL_BLOCK_ID not in [block.block_id for block in pool.allocate(7)]
    assert pool.num_free == 0


def test_least_recently_freed_content_is_evicted_first_and_worthless_blocks_before_it() -> None:
    pool = BlockPool(6)
    blocks = pool.allocate(5)
    for index, block in enumerate(blocks[:4]):
        pool.cache(block, bytes([index]))
    pool.free([blocks[2], blocks[0], blocks[4], blocks[3], blocks[1]])
    order = [blocks[4], blocks[2], blocks[0], blocks[3], blocks[1]]
    assert pool.allocate(5) == order
    assert pool.num_cached == 0


def test_found_block_survives_until_its_last_owner_is_gone() -> None:
    pool = BlockPool(3)
    (block,) = pool.allocate(1)
    pool.cache(block, b"h")
    pool.share([block])
    pool.free([block])
    assert pool.num_used == 1
    pool.free([block])
    assert pool.num_used == 0
    assert pool.get_cached(b"h") is block
    pool.share([block])
    assert pool.allocate(1) != [block]
    assert pool.get_cached(b"h") is block


def test_second_block_of_equal_content_stays_private() -> None:
    pool = BlockPool(4)
    first, second = pool.allocate(2)
    pool.cache(first, b"h")
    pool.cache(second, b"h")
    assert pool.get_cached(b"h") is first
    assert second.block_hash is None
    pool.forget([first, second])
    assert pool.num_cached == 0


def test_double_free_is_caught() -> None:
    pool = BlockPool(3)
    blocks = pool.allocate(1)
    pool.free(blocks)
    with pytest.raises(AssertionError, match="freed twice"):
        pool.free(blocks)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32))
def test_hash_table_and_blocks_agree_under_random_use(seed: int) -> None:
    rng = random.Random(seed)
    pool = BlockPool(10)
    owned: list[KVCacheBlock] = []
    for _ in range(200):
        action = rng.randrange(5)
        if action == 0 and pool.num_free:
            owned += pool.allocate(rng.randint(1, pool.num_free))
        elif action == 1 and owned:
            pool.free([owned.pop(rng.randrange(len(owned)))])
        elif action == 2 and owned:
            pool.cache(rng.choice(owned), bytes([rng.randrange(20)]))
        elif action == 3 and (found := pool.get_cached(bytes([rng.randrange(20)]))) is not None:
            pool.share([found])
            owned.append(found)
        elif action == 4 and rng.random() < 0.1:
            pool.forget_all()
        hashed = {block.block_hash: block for block in pool.blocks if block.block_hash is not None}
        assert len(hashed) == pool.num_cached
        assert all(pool.get_cached(block_hash) is block for block_hash, block in hashed.items())
        assert pool.num_used == len({block.block_id for block in owned})
        assert sum(block.ref_count for block in pool.blocks[1:]) == len(owned)
