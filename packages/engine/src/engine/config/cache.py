"""Settings of the `cache` group: how much memory the KV cache gets and how prefixes are reused."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheConfig:
    """The paged KV cache."""

    block_size: int | None = None
    """Tokens per block; null lets the platform choose."""
    num_blocks: int | None = None
    """Blocks to allocate; null sizes them by memory."""
    memory_fraction: float | None = None
    """Share of the device's memory for weights, activations and cache together; null lets the platform choose."""
    memory_bytes: int | None = None
    """Bytes for the cache alone; overrides `memory_fraction`."""
    dtype: str = "auto"
    """`auto` (the model's), `bfloat16`, `float16` or `float32`."""
    enable_prefix_caching: bool = True
    """Reuse the blocks of equal prefixes."""
    hash_seed: str | None = None
    """Root of the block hashes; null draws one per deployment."""
