"""Blocks of layers that keep every token: one block per `block_size` tokens, all of them for as long as the
request runs.

Knows rows and blocks; when to allocate, preempt or hash is decided above.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from engine.kv_cache.block import KVCacheBlock
from engine.kv_cache.block_pool import BlockPool


class FullAttentionManager:
    """Block lists by row.

    `capacity` is a column: tokens that the blocks of each row can hold, so that one comparison finds the rows
    of a step that need another block.
    """

    def __init__(self, pool: BlockPool, block_size: int, num_rows: int) -> None:
        self._pool = pool
        self.block_size = block_size
        self.capacity: NDArray[np.int64] = np.zeros(num_rows, dtype=np.int64)
        self._blocks: list[list[KVCacheBlock]] = [[] for _ in range(num_rows)]
        self._num_cached = [0] * num_rows

    def find_prefix(self, block_hashes: Sequence[bytes]) -> list[KVCacheBlock]:
        """Return the blocks of the longest cached prefix of this chain."""
        found: list[KVCacheBlock] = []
        for block_hash in block_hashes:
            block = self._pool.get_cached(block_hash)
            if block is None:
                break
            found.append(block)
        return found

    def count_new_blocks(self, row: int, num_tokens: int, prefix: Sequence[KVCacheBlock] = ()) -> int:
        """Return how many free blocks it takes for `row` to hold `num_tokens`, the prefix being found.

        A found block that nobody owns counts too: taking it shrinks the free queue.
        """
        held = len(self._blocks[row]) + len(prefix)
        missing = max(0, -(-num_tokens // self.block_size) - held)
        return missing + sum(1 for block in prefix if block.ref_count == 0)

    def allocate(self, row: int, num_tokens: int, prefix: Sequence[KVCacheBlock] = ()) -> list[int]:
        """Give `row` its found prefix and as many new blocks as `num_tokens` need; return the ids of both."""
        blocks = self._blocks[row]
        start = len(blocks)
        if prefix:
            assert not blocks, "a prefix can only come first"
            self._pool.share(prefix)
            blocks.extend(prefix)
            self._num_cached[row] = len(prefix)
        missing = -(-num_tokens // self.block_size) - len(blocks)
        if missing > 0:
            blocks.extend(self._pool.allocate(missing))
        self.capacity[row] = len(blocks) * self.block_size
        return [block.block_id for block in blocks[start:]]

    def cache(self, row: int, block_hashes: Sequence[bytes], num_tokens: int) -> None:
        """Make the row's full blocks findable up to `num_tokens`, as far as their hashes are known."""
        end = min(num_tokens // self.block_size, len(block_hashes))
        blocks = self._blocks[row]
        for index in range(self._num_cached[row], end):
            self._pool.cache(blocks[index], block_hashes[index])
        self._num_cached[row] = max(self._num_cached[row], end)

    def forget(self, row: int) -> None:
        """Make the row's blocks unfindable, shared ones too."""
        self._pool.forget(self._blocks[row])

    def free(self, row: int) -> None:
        """Give the row's blocks back, last first, so that the tail of a prefix is evicted before its head."""
        self._pool.free(reversed(self._blocks[row]))
        self._blocks[row] = []
        self._num_cached[row] = 0
        self.capacity[row] = 0

    def block_ids(self, row: int) -> list[int]:
        """Return the ids of the row's blocks in order."""
        return [block.block_id for block in self._blocks[row]]
