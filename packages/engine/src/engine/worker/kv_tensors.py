"""The paged KV tensors: keys and values apart, [blocks, kv heads, block size, head size] per layer.

Two tensors and not one: an op that changes two views of one tensor under torch.compile gives wrong results
silently.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from engine.types.errors import ConfigError
from engine.types.kv_cache_spec import KVCachePlan

KVTensors = dict[str, tuple[torch.Tensor, torch.Tensor]]

_MAX_BYTES = 2**62
"""numpy has another error for sizes that no address reaches."""


def allocate_kv_tensors(plan: KVCachePlan, device: torch.device) -> KVTensors:
    """Return zeroed (keys, values) per layer name.

    Raises:
        ConfigError: the device, or this process, cannot have so much memory.
    """
    try:
        return _allocate(plan, device)
    except (MemoryError, torch.OutOfMemoryError):
        raise ConfigError(
            f"the KV cache of {plan.num_blocks} blocks ({plan.bytes} bytes) does not fit into the memory of "
            f"{device.type!r}; lower cache.memory_bytes, cache.memory_fraction or cache.num_blocks."
        ) from None


def _allocate(plan: KVCachePlan, device: torch.device) -> KVTensors:
    tensors: KVTensors = {}
    for name, spec in plan.layer_specs.items():
        shape = (plan.num_blocks, spec.num_kv_heads, plan.block_size, spec.head_size)
        dtype: torch.dtype = getattr(torch, spec.dtype)
        tensors[name] = (_zeros(shape, dtype, device), _zeros(shape, dtype, device))
    return tensors


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    # numpy's zeros come from calloc: the kernel hands out zero pages when they are first touched, so a large
    # cache costs neither start-up time nor memory before it is used. torch.zeros would write them all.
    num_bytes = math.prod(shape) * dtype.itemsize
    if num_bytes > _MAX_BYTES:
        raise MemoryError
    return torch.from_numpy(np.zeros(num_bytes, np.uint8)).view(dtype).view(shape)
