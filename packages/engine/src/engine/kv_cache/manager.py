"""The KV cache as the scheduler sees it: find a prefix, get slots or None, give them back.

Ties the pool, the hasher and the manager of each kind of cache together. Knows requests and rows; which
request runs or yields is the scheduler's business.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from engine.kv_cache.block import KVCacheBlock
from engine.kv_cache.block_pool import BlockPool
from engine.kv_cache.hashing import BlockHasher
from engine.kv_cache.managers.full import FullAttentionManager
from engine.types.request import Request


class PrefixCacheCounter:
    """Tokens looked up in the prefix cache and tokens found, since they were last taken."""

    __slots__ = ("hits", "queries")

    def __init__(self) -> None:
        self.queries = 0
        self.hits = 0

    def take(self) -> tuple[int, int]:
        """Return (queries, hits) and start anew."""
        taken = self.queries, self.hits
        self.queries = self.hits = 0
        return taken


class KVCacheManager:
    """Blocks by row, shared by content.

    Invariant: free plus used blocks make the usable total; a block has two owners only if it was found by
    hash. Blocks of a prompt become findable when the step that computes them is scheduled: a later reader
    runs after that step, or within it, where every layer writes all keys and values of a step before it
    reads. Generated tokens are hashed when their request gives its blocks up, which keeps hashing out of
    steady decode.
    """

    def __init__(
        self,
        *,
        num_blocks: int,
        block_size: int,
        num_rows: int,
        enable_prefix_caching: bool = True,
        hash_seed: str | None = None,
    ) -> None:
        self.block_size = block_size
        self.enable_prefix_caching = enable_prefix_caching
        self.pool = BlockPool(num_blocks)
        self.prefix_counter = PrefixCacheCounter()
        self._hasher = BlockHasher(block_size, hash_seed)
        self._full = FullAttentionManager(self.pool, block_size, num_rows)

    @property
    def usage(self) -> float:
        """Share of the usable blocks that requests hold, 0 to 1."""
        return self.pool.num_used / self.pool.num_usable if self.pool.num_usable else 0.0

    def get_computed_blocks(self, request: Request) -> list[KVCacheBlock]:
        """Return the cached blocks of the longest known prefix of a waiting request.

        Never all of its tokens: the last one is always computed, since its logits are needed. The blocks are
        not taken; pass them to `allocate_slots` before anything else changes the pool.
        """
        self._enter_epoch(request)
        if not self.enable_prefix_caching or not request.params.reads_prefix_cache:
            return []
        self._hasher.extend(request.block_hashes, request.token_ids, request.cache_salt)
        most = (len(request.token_ids) - 1) // self.block_size
        return self._full.find_prefix(request.block_hashes[:most])

    def allocate_slots(
        self,
        row: int,
        num_tokens: int,
        computed_blocks: Sequence[KVCacheBlock] = (),
        *,
        num_reserved: int = 0,
    ) -> list[int] | None:
        """Let `row` hold `num_tokens` tokens, beginning with the computed blocks.

        Args:
            row: row of the request.
            num_tokens: tokens from the start of the sequence that need a slot.
            computed_blocks: what `get_computed_blocks` returned, for a row that begins.
            num_reserved: blocks that must stay free afterwards.

        Returns:
            Ids of the blocks that the row gained in order (computed ones first), or None where the pool is
            short; then nothing has changed.
        """
        needed = self._full.count_new_blocks(row, num_tokens, computed_blocks)
        if needed + num_reserved > self.pool.num_free:
            return None
        return self._full.allocate(row, num_tokens, computed_blocks)

    def find_short_rows(self, rows: NDArray[np.int64], num_tokens: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the indices into `rows` of those whose blocks cannot hold `num_tokens`."""
        return np.flatnonzero(num_tokens > self._full.capacity[rows])

    def record_lookup(self, num_tokens: int, num_hits: int) -> None:
        """Count one lookup of an admitted request."""
        if self.enable_prefix_caching:
            self.prefix_counter.queries += num_tokens
            self.prefix_counter.hits += num_hits

    def cache_blocks(self, request: Request, num_computed_tokens: int) -> None:
        """Make the full blocks of a running request findable, as far as the hashes of its prompt reach."""
        if self.enable_prefix_caching and self._has_current_hashes(request):
            self._full.cache(request.row, request.block_hashes, num_computed_tokens)

    def free(self, request: Request, token_ids: NDArray[np.int32], *, is_reusable: bool = True) -> None:
        """Take back the blocks of a request that leaves its row.

        Args:
            request: it still holds its row.
            token_ids: the tokens whose keys and values stand in its blocks.
            is_reusable: False where the content cannot be trusted; then no block of it stays findable.
        """
        if not is_reusable:
            self._full.forget(request.row)
        elif self.enable_prefix_caching and self._has_current_hashes(request):
            self._hasher.extend(request.block_hashes, token_ids, request.cache_salt)
            self._full.cache(request.row, request.block_hashes, len(token_ids))
        self._full.free(request.row)

    def reset_prefix_cache(self) -> None:
        """Forget all content, also what running requests have computed so far: none of it is found again."""
        self.pool.forget_all()
        self._hasher.start_epoch()

    def block_ids(self, row: int) -> list[int]:
        """Return the ids of the row's blocks in order."""
        return self._full.block_ids(row)

    def _has_current_hashes(self, request: Request) -> bool:
        return request.hash_epoch == self._hasher.epoch

    def _enter_epoch(self, request: Request) -> None:
        if not self._has_current_hashes(request):
            request.block_hashes = []
            request.hash_epoch = self._hasher.epoch
