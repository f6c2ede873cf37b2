"""What a layer needs of the KV cache, as data: the planner turns these and a byte budget into blocks."""

from __future__ import annotations

from dataclasses import dataclass

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Bytes of one element of each dtype the engine computes in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FullAttentionSpec:
    """Keys and values of every token, one page per block."""

    block_size: int
    """Tokens per block."""
    num_kv_heads: int
    """On this rank."""
    head_size: int
    dtype: str

    @property
    def page_bytes(self) -> int:
        """Bytes of one block of one layer, keys and values together."""
        return 2 * self.block_size * self.num_kv_heads * self.head_size * DTYPE_BYTES[self.dtype]


KVCacheSpec = FullAttentionSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class KVCachePlan:
    """How many blocks there are and which layers hold them; block 0 is the null block, never handed out."""

    num_blocks: int
    block_size: int
    layer_specs: dict[str, KVCacheSpec]
    """Per layer name, in layer order."""
    bytes: int
    """Of all layers on one rank."""
