"""How many bytes the KV cache may take: a formula over the device's memory, the model and one step's size."""

from __future__ import annotations

from collections.abc import Mapping

from engine.config.engine_config import EngineConfig
from engine.types.kv_cache_spec import KVCacheSpec

_GIB = 1024**3

# On a host that runs other programs a cache should not take what it hardly ever uses.
_HOST_SHARE = 0.4
_HOST_MAX_BYTES = 4 * _GIB

# Workspaces of libraries and fragmentation on an accelerator, measured by no formula.
_DEVICE_MARGIN_BYTES = _GIB


def compute_host_cache_bytes(config: EngineConfig, specs: Mapping[str, KVCacheSpec], available: int) -> int:
    """Return the cache's bytes on the CPU: a share of what is available, and no more than can be used."""
    if config.cache.memory_bytes is not None:
        return config.cache.memory_bytes
    share = (
        available * config.cache.memory_fraction if config.cache.memory_fraction else available * _HOST_SHARE
    )
    limit = share if config.cache.memory_fraction else min(share, _HOST_MAX_BYTES)
    return min(int(limit), _useful_bytes(config, specs))


def compute_device_cache_bytes(config: EngineConfig, *, total: int, free: int) -> int:
    """Return the cache's bytes on an accelerator, after the weights are loaded.

    Args:
        total: the device's memory, bytes.
        free: what is free now, bytes; other programs' use counts as used.
    """
    if config.cache.memory_bytes is not None:
        return config.cache.memory_bytes
    used = total - free
    budget = int(total * (config.cache.memory_fraction or 0.9))
    return max(budget - used - _activation_bytes(config) - _DEVICE_MARGIN_BYTES, 0)


def _useful_bytes(config: EngineConfig, specs: Mapping[str, KVCacheSpec]) -> int:
    max_len = config.model.max_model_len or 0
    max_num_seqs = config.scheduler.max_num_seqs or 1
    # One block more per row for the partly filled last one, and the null block.
    return sum(
        spec.page_bytes * (max_num_seqs * (-(-max_len // spec.block_size)) + 1) for spec in specs.values()
    )


def _activation_bytes(config: EngineConfig) -> int:
    """Peak of one step: the widest layer's tensors for every token, and logits with their sampling copies."""
    assert config.checkpoint is not None, "the configuration is resolved before a worker exists"
    shape = config.checkpoint.config
    num_tokens = config.scheduler.max_num_batched_tokens or 0
    num_lines = config.scheduler.max_num_seqs or 0
    hidden = int(shape.get("hidden_size", 0))
    intermediate = int(shape.get("intermediate_size", 4 * hidden))
    per_token = 2 * (6 * hidden + 3 * intermediate)
    per_line = 4 * 4 * config.checkpoint.vocab_size
    return num_tokens * per_token + num_lines * per_line
