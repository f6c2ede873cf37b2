"""From what layers need and how many bytes there are to a number of blocks. Pure arithmetic."""

from __future__ import annotations

from collections.abc import Mapping

from engine.types.errors import ConfigError
from engine.types.kv_cache_spec import KVCachePlan, KVCacheSpec


def plan_kv_cache(
    specs: Mapping[str, KVCacheSpec],
    available_bytes: int,
    *,
    max_model_len: int,
    num_blocks: int | None = None,
) -> KVCachePlan:
    """Return how many blocks the cache gets.

    A block spans all layers: its bytes are the sum of their pages. One block more than can be used is
    counted, the null block.

    Args:
        specs: per layer, in layer order; all of one block size.
        available_bytes: what the cache may take on one rank.
        max_model_len: longest sequence, in tokens; at least one such sequence must fit.
        num_blocks: blocks to allocate; None takes as many as fit.

    Raises:
        ConfigError: layers disagree about the block size, the blocks asked for do not fit, or one sequence of
            `max_model_len` tokens does not; the message says what would.
    """
    block_size = _common_block_size(specs)
    block_bytes = sum(spec.page_bytes for spec in specs.values())
    affordable = available_bytes // block_bytes
    if num_blocks is not None and num_blocks > affordable:
        raise ConfigError(
            f"cache.num_blocks={num_blocks} needs {num_blocks * block_bytes} bytes, but the cache may take "
            f"{available_bytes} bytes; use at most {affordable} blocks or give the cache more memory.",
            key="cache.num_blocks",
        )
    total = affordable if num_blocks is None else num_blocks
    usable = max(total - 1, 0)
    needed = -(-max_model_len // block_size)
    if usable < needed:
        message = _does_not_fit(usable, needed, block_size, block_bytes, max_model_len)
        raise ConfigError(message, key="cache.memory_bytes" if num_blocks is None else "cache.num_blocks")
    return KVCachePlan(
        num_blocks=total, block_size=block_size, layer_specs=dict(specs), bytes=total * block_bytes
    )


def _common_block_size(specs: Mapping[str, KVCacheSpec]) -> int:
    sizes = {spec.block_size for spec in specs.values()}
    if not sizes:
        raise ConfigError("the model has no layer with a KV cache; this engine serves decoder models only.")
    if len(sizes) > 1:
        raise ConfigError(
            f"layers ask for different block sizes {sorted(sizes)}; set cache.block_size to one for all.",
            key="cache.block_size",
        )
    return sizes.pop()


def _does_not_fit(usable: int, needed: int, block_size: int, block_bytes: int, max_model_len: int) -> str:
    fits = usable * block_size
    advice = f"give the cache at least {(needed + 1) * block_bytes} bytes"
    if fits:
        advice = f"set model.max_model_len to at most {fits}, or {advice}"
    return (
        f"the KV cache holds {usable} blocks of {block_size} tokens ({fits} tokens), but one sequence of "
        f"model.max_model_len={max_model_len} tokens needs {needed} blocks; {advice} (cache.memory_bytes, or "
        "cache.num_blocks where that is set)."
    )
