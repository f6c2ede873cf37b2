"""The cache's share of memory, as arithmetic."""

from __future__ import annotations

from dataclasses import replace

import pytest
from engine.config.cache import CacheConfig
from engine.config.engine_config import EngineConfig
from engine.config.model import ModelConfig
from engine.config.scheduler import SchedulerConfig
from engine.types.info import CheckpointFacts
from engine.types.kv_cache_spec import FullAttentionSpec
from engine.worker.memory import compute_device_cache_bytes, compute_host_cache_bytes

GIB = 1024**3
SPEC = FullAttentionSpec(block_size=16, num_kv_heads=2, head_size=64, dtype="bfloat16")
SPECS = {"layer0": SPEC, "layer1": SPEC}


def make_config(*, dtype: str = "bfloat16", max_num_seqs: int = 64, **cache: object) -> EngineConfig:
    facts = CheckpointFacts(
        format="config",
        path="",
        architecture="LlamaForCausalLM",
        config={"hidden_size": 4096, "intermediate_size": 14336},
        vocab_size=128_000,
    )
    return EngineConfig(
        model=ModelConfig(dtype=dtype, max_model_len=4096),
        cache=CacheConfig(block_size=16, **{"memory_fraction": 0.9, **cache}),
        scheduler=SchedulerConfig(max_num_seqs=max_num_seqs, max_num_batched_tokens=8192),
        checkpoint=facts,
    )


def test_stated_bytes_are_taken_as_they_are() -> None:
    config = make_config(memory_bytes=12345)
    assert compute_host_cache_bytes(config, SPECS, available=GIB) == 12345
    assert compute_device_cache_bytes(config, total=80 * GIB, free=GIB) == 12345


def test_a_device_keeps_room_for_what_is_used_and_for_one_step() -> None:
    config = make_config()
    got = compute_device_cache_bytes(config, total=80 * GIB, free=60 * GIB)
    step = 8192 * 2 * (6 * 4096 + 3 * 14336) + 64 * 4 * 4 * 128_000
    assert got == int(80 * GIB * 0.9) - 20 * GIB - step - GIB


def test_wider_elements_leave_less_for_the_cache() -> None:
    narrow, wide = (
        compute_device_cache_bytes(make_config(dtype=dtype), total=80 * GIB, free=60 * GIB)
        for dtype in ("bfloat16", "float32")
    )
    assert narrow - wide == 8192 * 2 * (6 * 4096 + 3 * 14336)


def test_a_full_device_leaves_nothing_and_not_less() -> None:
    assert compute_device_cache_bytes(make_config(), total=8 * GIB, free=GIB) == 0


@pytest.mark.parametrize(("fraction", "expected"), [(0.5, 5 * GIB), (None, 4 * GIB), (0.1, GIB)])
def test_a_host_gives_the_stated_share_or_a_modest_one(fraction: float | None, expected: int) -> None:
    config = make_config(memory_fraction=fraction, max_num_seqs=10_000)
    assert compute_host_cache_bytes(config, SPECS, available=10 * GIB) == expected


def test_a_small_host_gives_less_than_the_modest_limit() -> None:
    config = make_config(memory_fraction=None, max_num_seqs=10_000)
    assert compute_host_cache_bytes(config, SPECS, available=GIB) == int(0.4 * GIB)


def test_a_host_gives_no_more_than_all_rows_can_use() -> None:
    config = make_config(max_num_seqs=2)
    blocks = 2 * 4096 // 16 + 1
    assert compute_host_cache_bytes(config, SPECS, available=64 * GIB) == 2 * blocks * SPEC.page_bytes
    longer = replace(config, model=replace(config.model, max_model_len=4097))
    assert compute_host_cache_bytes(longer, SPECS, available=64 * GIB) == 2 * (blocks + 2) * SPEC.page_bytes
