"""The KV tensors: their shapes, and a size that no machine has."""

from __future__ import annotations

import pytest
import torch
from engine.types.errors import ConfigError
from engine.types.kv_cache_spec import FullAttentionSpec, KVCachePlan
from engine.worker.kv_tensors import allocate_kv_tensors


def build_plan(num_blocks: int) -> KVCachePlan:
    spec = FullAttentionSpec(block_size=16, num_kv_heads=3, head_size=64, dtype="float32")
    return KVCachePlan(
        num_blocks=num_blocks, block_size=16, layer_specs={"0": spec}, bytes=num_blocks * spec.page_bytes
    )


def test_keys_and_values_are_apart_and_zero() -> None:
    keys, values = allocate_kv_tensors(build_plan(4), torch.device("cpu"))["0"]
    assert keys.shape == values.shape == (4, 3, 16, 64)
    assert not keys.any()
    assert keys.data_ptr() != values.data_ptr()


@pytest.mark.parametrize("num_blocks", [10**11, 10**15, 2**62])
def test_a_cache_larger_than_any_machine_is_the_operators_to_fix(num_blocks: int) -> None:
    with pytest.raises(
        ConfigError, match=r"does not fit into the memory of 'cpu'; lower cache\.memory_bytes"
    ):
        allocate_kv_tensors(build_plan(num_blocks), torch.device("cpu"))
