"""How many bytes the KV cache may take: a formula over the device's memory, the model and one step's size."""

from __future__ import annotations

from collections.abc import Mapping

from engine.config.engine_config import EngineConfig, resolved
from engine.types.kv_cache_spec import DTYPE_BYTES, KVCacheSpec

_GIB = 1024**3

# On a host that runs other programs a cache should not take what it hardly ever uses.
_HOST_SHARE = 0.4
_HOST_MAX_BYTES = 4 * _GIB

# Workspaces of libraries and fragmentation on an accelerator, measured by no formula.
_DEVICE_MARGIN_BYTES = _GIB


def compute_host_cache_bytes(config: EngineConfig, specs: Mapping[str, KVCacheSpec], available: int) -> int:
    """Return the cache's bytes on the CPU: a share of what is available, and no more than can be used.

    Args:
        available: host memory that can be allocated now, bytes.
    """
    if config.cache.memory_bytes is not None:
        return config.cache.memory_bytes
    if config.cache.memory_fraction is not None:
        limit = int(available * config.cache.memory_fraction)
    else:
        limit = min(int(available * _HOST_SHARE), _HOST_MAX_BYTES)
    return min(limit, _useful_bytes(config, specs))


def compute_device_cache_bytes(config: EngineConfig, *, total: int, free: int) -> int:
    """Return the cache's bytes on an accelerator, after the weights are loaded.

    Args:
        total: the device's memory, bytes.
        free: what is free now, bytes; other programs' use counts as used.
    """
    if config.cache.memory_bytes is not None:
        return config.cache.memory_bytes
    budget = int(total * resolved(config.cache.memory_fraction))
    return max(budget - (total - free) - _activation_bytes(config) - _DEVICE_MARGIN_BYTES, 0)


def _useful_bytes(config: EngineConfig, specs: Mapping[str, KVCacheSpec]) -> int:
    """Room for every row at its full length, and the null block."""
    max_len = resolved(config.model.max_model_len)
    num_rows = resolved(config.scheduler.max_num_seqs)
    return sum(spec.page_bytes * (num_rows * -(-max_len // spec.block_size) + 1) for spec in specs.values())


def _activation_bytes(config: EngineConfig) -> int:
    """Peak of one step: the widest layer's tensors for every token, and logits with their sampling copies."""
    checkpoint = resolved(config.checkpoint)
    hidden = int(checkpoint.config["hidden_size"])
    intermediate = int(checkpoint.config["intermediate_size"])
    per_token = DTYPE_BYTES[config.model.dtype] * (6 * hidden + 3 * intermediate)
    # float32 logits, and as much again for each of: the raw copy, probabilities, and a sort or filter.
    per_line = 4 * DTYPE_BYTES["float32"] * checkpoint.vocab_size
    num_tokens = resolved(config.scheduler.max_num_batched_tokens)
    return num_tokens * per_token + resolved(config.scheduler.max_num_seqs) * per_line
