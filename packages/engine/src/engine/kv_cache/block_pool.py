"""All blocks of a cache: which are free, who shares them, and which hold content that can be found again.

Knows hashes as opaque keys and blocks as numbers; what a row or a token is, it does not know.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from engine.kv_cache.block import NULL_BLOCK_ID, FreeBlockQueue, KVCacheBlock


class BlockPool:
    """Hands out, shares and takes back blocks. Called by the managers only.

    Invariants: every block but the null block is either free (`ref_count` 0, in the queue) or used; a hash
    names at most one block; a used block is never evicted.
    """

    def __init__(self, num_blocks: int) -> None:
        self.blocks = [KVCacheBlock(block_id) for block_id in range(num_blocks)]
        self.null_block = self.blocks[NULL_BLOCK_ID]
        self.null_block.ref_count = 1
        self._free = FreeBlockQueue()
        self._by_hash: dict[bytes, KVCacheBlock] = {}
        for block in self.blocks[1:]:
            self._free.append(block)

    @property
    def num_usable(self) -> int:
        """Blocks that can be handed out at all."""
        return len(self.blocks) - 1

    @property
    def num_free(self) -> int:
        """Blocks without an owner, cached content or not."""
        return len(self._free)

    @property
    def num_used(self) -> int:
        """Blocks with at least one owner."""
        return self.num_usable - len(self._free)

    @property
    def num_cached(self) -> int:
        """Blocks that can be found by hash."""
        return len(self._by_hash)

    def get_cached(self, block_hash: bytes) -> KVCacheBlock | None:
        """Return the block that holds this content, or None."""
        return self._by_hash.get(block_hash)

    def allocate(self, count: int) -> list[KVCacheBlock]:
        """Take the least recently used blocks, forgetting what they held; the caller checked `num_free`."""
        taken: list[KVCacheBlock] = []
        for _ in range(count):
            block = self._free.pop()
            if block.block_hash is not None:
                del self._by_hash[block.block_hash]
                block.block_hash = None
            block.ref_count = 1
            taken.append(block)
        return taken

    def share(self, blocks: Iterable[KVCacheBlock]) -> None:
        """Add an owner to each of these found blocks."""
        for block in blocks:
            if block.ref_count == 0:
                self._free.remove(block)
            block.ref_count += 1

    def free(self, blocks: Iterable[KVCacheBlock]) -> None:
        """Drop one owner of each, in the order in which they should be evicted.

        Blocks that cannot be found again go to the front of the queue, so that they are used up before any
        cached content is lost.
        """
        for block in blocks:
            block.ref_count -= 1
            assert block.ref_count >= 0, f"{block!r} was freed twice"
            if block.ref_count:
                continue
            if block.block_hash is None:
                self._free.prepend(block)
            else:
                self._free.append(block)

    def cache(self, block: KVCacheBlock, block_hash: bytes) -> None:
        """Make a full, used block findable; a second block of equal content stays private to its owner."""
        if block.block_hash is None and block_hash not in self._by_hash:
            block.block_hash = block_hash
            self._by_hash[block_hash] = block

    def forget(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Make these blocks unfindable: what they hold must not be reused."""
        for block in blocks:
            if block.block_hash is not None:
                del self._by_hash[block.block_hash]
                block.block_hash = None

    def forget_all(self) -> None:
        """Make every block unfindable; owners keep theirs."""
        for block in self._by_hash.values():
            block.block_hash = None
        self._by_hash.clear()

    def free_blocks(self) -> list[KVCacheBlock]:
        """Return the free blocks, next to be handed out first; linear, for checks."""
        return self._free.blocks()
