"""Which slice of a full tensor a rank holds, as arithmetic on features.

Knows no tensors and no layers. A fused layer (queries, keys and values in one) is several parts, each cut
over the ranks for itself; a part's own tensor in the checkpoint is what `source` counts in.
"""

from __future__ import annotations

from dataclasses import dataclass

ShardId = str | int
"""Name of a part within a fused layer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One part of a layer's features on this rank."""

    shard_id: ShardId
    start: int
    """First feature within this rank's tensor."""
    size: int
    """Features that this rank holds."""
    source_start: int
    """First of them within the part's full tensor."""
    source_size: int
    """Features of the full tensor; less than `source_start + size` where the last rank holds padding."""

    @property
    def num_loaded(self) -> int:
        """Features that come from the checkpoint; the rest is padding."""
        return max(0, min(self.size, self.source_size - self.source_start))


def divide(total: int, ranks: int, what: str) -> int:
    """Return an even share.

    Raises:
        ValueError: it does not divide.
    """
    if total % ranks:
        raise ValueError(
            f"{what}={total} does not divide over {ranks} tensor-parallel ranks; choose another number."
        )
    return total // ranks


def whole(size: int, shard_id: ShardId = 0) -> tuple[Part, ...]:
    """Return the single part of a dimension that every rank holds in full."""
    return (Part(shard_id=shard_id, start=0, size=size, source_start=0, source_size=size),)


def split_even(size: int, rank: int, ranks: int, what: str) -> tuple[Part, ...]:
    """Return the single part of a dimension that is cut evenly."""
    return merge([(0, size)], rank, ranks, what)


def merge(sizes: list[tuple[ShardId, int]], rank: int, ranks: int, what: str) -> tuple[Part, ...]:
    """Return the parts of a fused dimension, each cut evenly, one after the other on each rank."""
    parts: list[Part] = []
    start = 0
    for shard_id, size in sizes:
        share = divide(size, ranks, what)
        parts.append(
            Part(shard_id=shard_id, start=start, size=share, source_start=rank * share, source_size=size)
        )
        start += share
    return tuple(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadShare:
    """How attention heads fall on one rank."""

    num_heads: int
    """Query heads on this rank."""
    num_kv_heads: int
    """KV heads on this rank."""
    first_kv_head: int
    """Index of the first of them among all."""


def share_heads(num_heads: int, num_kv_heads: int, rank: int, ranks: int) -> HeadShare:
    """Return a rank's heads; with more ranks than KV heads each is held by several ranks.

    Raises:
        ValueError: the heads do not divide.
    """
    local_heads = divide(num_heads, ranks, "num_attention_heads")
    if ranks <= num_kv_heads:
        local_kv_heads = divide(num_kv_heads, ranks, "num_key_value_heads")
        return HeadShare(
            num_heads=local_heads, num_kv_heads=local_kv_heads, first_kv_head=rank * local_kv_heads
        )
    if ranks % num_kv_heads:
        raise ValueError(
            f"num_key_value_heads={num_kv_heads} does not divide {ranks} tensor-parallel ranks, so the heads "
            "cannot be held by equally many ranks; choose another size."
        )
    return HeadShare(num_heads=local_heads, num_kv_heads=1, first_kv_head=rank // (ranks // num_kv_heads))


def split_qkv(
    num_heads: int, num_kv_heads: int, head_size: int, rank: int, ranks: int
) -> tuple[Part, Part, Part]:
    """Return the parts `q`, `k` and `v` of a fused projection, queries first."""
    share = share_heads(num_heads, num_kv_heads, rank, ranks)
    query_size, kv_size = share.num_heads * head_size, share.num_kv_heads * head_size
    query = Part(
        shard_id="q",
        start=0,
        size=query_size,
        source_start=rank * query_size,
        source_size=num_heads * head_size,
    )
    key = Part(
        shard_id="k",
        start=query_size,
        size=kv_size,
        source_start=share.first_kv_head * head_size,
        source_size=num_kv_heads * head_size,
    )
    value = Part(
        shard_id="v",
        start=query_size + kv_size,
        size=kv_size,
        source_start=key.source_start,
        source_size=key.source_size,
    )
    return query, key, value


def split_vocabulary(vocab_size: int, rank: int, ranks: int) -> tuple[Part, ...]:
    """Return a rank's rows of a vocabulary table: equal on every rank, so that the last may hold padding.

    One rank alone holds the vocabulary as it is. Otherwise a rank's share is rounded up to 64 rows, the tile
    that matrix kernels like.
    """
    share = vocab_size if ranks == 1 else -(-vocab_size // (ranks * 64)) * 64
    return (Part(shard_id=0, start=0, size=share, source_start=rank * share, source_size=vocab_size),)
