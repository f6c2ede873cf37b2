"""A block of the KV cache and the queue of free ones; knows neither requests nor hashing."""

from __future__ import annotations

NULL_BLOCK_ID = 0
"""Padding of block tables points here; the block is never handed out."""


class KVCacheBlock:
    """`block_size` tokens of every layer. Owned by the pool; changed by the pool and the free queue only.

    Invariant: it stands in the free queue exactly if `ref_count` is 0.
    """

    __slots__ = ("block_hash", "block_id", "next_free", "previous_free", "ref_count")

    def __init__(self, block_id: int) -> None:
        self.block_id = block_id
        self.ref_count = 0
        self.block_hash: bytes | None = None
        """Key under which the pool finds it, while its content may be reused."""
        self.previous_free: KVCacheBlock | None = None
        self.next_free: KVCacheBlock | None = None

    def __repr__(self) -> str:
        return f"KVCacheBlock({self.block_id}, refs={self.ref_count}, hashed={self.block_hash is not None})"


class FreeBlockQueue:
    """Free blocks from the least to the most recently used; every operation is O(1).

    A doubly linked list through the blocks themselves, because a prefix hit takes a block out of the middle:

        head <-> [oldest] <-> ... <-> [newest] <-> tail
    """

    def __init__(self) -> None:
        self._head = KVCacheBlock(-1)
        self._tail = KVCacheBlock(-1)
        self._head.next_free = self._tail
        self._tail.previous_free = self._head
        self._len = 0

    def __len__(self) -> int:
        return self._len

    def pop(self) -> KVCacheBlock:
        """Take the least recently used block; the caller knows that there is one."""
        block = self._head.next_free
        assert block is not None
        assert block is not self._tail, "pop from an empty free queue"
        following = block.next_free
        assert following is not None
        self._head.next_free = following
        following.previous_free = self._head
        block.previous_free = block.next_free = None
        self._len -= 1
        return block

    def remove(self, block: KVCacheBlock) -> None:
        """Take out this block, wherever it stands."""
        before, after = block.previous_free, block.next_free
        assert before is not None
        assert after is not None, "the block is not free"
        before.next_free = after
        after.previous_free = before
        block.previous_free = block.next_free = None
        self._len -= 1

    def append(self, block: KVCacheBlock) -> None:
        """Put in as the most recently used: evicted last."""
        before = self._tail.previous_free
        assert before is not None
        self._link(before, block, self._tail)

    def prepend(self, block: KVCacheBlock) -> None:
        """Put in as the next to be handed out: its content is worth nothing."""
        after = self._head.next_free
        assert after is not None
        self._link(self._head, block, after)

    def blocks(self) -> list[KVCacheBlock]:
        """Return all, least recently used first; linear, for checks."""
        found: list[KVCacheBlock] = []
        block = self._head.next_free
        while block is not None and block is not self._tail:
            found.append(block)
            block = block.next_free
        return found

    def _link(self, before: KVCacheBlock, block: KVCacheBlock, after: KVCacheBlock) -> None:
        assert block.next_free is None, "the block is already free"
        block.previous_free = before
        block.next_free = after
        before.next_free = after.previous_free = block
        self._len += 1
