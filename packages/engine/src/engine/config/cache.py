"""Settings of the `cache` group: how much memory the KV cache gets and how prefixes are reused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from engine.config.ranges import DtypeName, Fraction, PositiveInt


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheConfig:
    """The paged KV cache."""

    block_size: PositiveInt | None = None
    """Tokens per block; null lets the platform choose."""
    num_blocks: Annotated[int, Meta(ge=2)] | None = None
    """Blocks to allocate, the null block among them; null sizes them by memory."""
    memory_fraction: Fraction | None = None
    """Share of the device's memory for weights, activations and cache; null lets the platform choose."""
    memory_bytes: PositiveInt | None = None
    """Bytes for the cache alone; overrides `memory_fraction`."""
    dtype: DtypeName = "auto"
    """`auto` (the model's), `bfloat16`, `float16` or `float32`."""
    enable_prefix_caching: bool = True
    """Reuse the blocks of equal prefixes."""
    hash_seed: str | None = None
    """Root of the block hashes; null draws one per deployment."""
