"""From bytes to blocks, and what is said where one sequence does not fit."""

from __future__ import annotations

import pytest
from engine.kv_cache.planner import plan_kv_cache
from engine.types.errors import ConfigError
from engine.types.kv_cache_spec import FullAttentionSpec

SPEC = FullAttentionSpec(block_size=16, num_kv_heads=2, head_size=64, dtype="bfloat16")
PAGE = 2 * 16 * 2 * 64 * 2


def test_block_spans_all_layers() -> None:
    wide = FullAttentionSpec(block_size=16, num_kv_heads=4, head_size=64, dtype="bfloat16")
    plan = plan_kv_cache({"a": SPEC, "b": wide}, 100 * 3 * PAGE + 5, max_model_len=1600 - 16)
    assert plan.num_blocks == 100
    assert plan.bytes == 100 * 3 * PAGE
    assert list(plan.layer_specs) == ["a", "b"]


def test_configured_number_of_blocks_wins_within_the_memory() -> None:
    plan = plan_kv_cache({"a": SPEC}, 100 * PAGE, max_model_len=64, num_blocks=50)
    assert plan.num_blocks == 50
    with pytest.raises(ConfigError, match=r"cache\.num_blocks=101 .* at most 100 blocks") as caught:
        plan_kv_cache({"a": SPEC}, 100 * PAGE, max_model_len=64, num_blocks=101)
    assert caught.value.key == "cache.num_blocks"


def test_sequence_that_does_not_fit_is_refused_with_what_would() -> None:
    with pytest.raises(ConfigError) as caught:
        plan_kv_cache({"a": SPEC}, 11 * PAGE, max_model_len=161)
    text = str(caught.value)
    assert "10 blocks of 16 tokens (160 tokens)" in text
    assert "max_model_len=161" in text
    assert "at most 160" in text
    assert f"at least {12 * PAGE} bytes" in text
    # Both pieces of advice hold.
    assert plan_kv_cache({"a": SPEC}, 11 * PAGE, max_model_len=160).num_blocks == 11
    assert plan_kv_cache({"a": SPEC}, 12 * PAGE, max_model_len=161).num_blocks == 12


@pytest.mark.parametrize("available_bytes", [0, PAGE - 1, PAGE])
def test_no_memory_at_all_gives_no_useless_advice(available_bytes: int) -> None:
    with pytest.raises(ConfigError) as caught:
        plan_kv_cache({"a": SPEC}, available_bytes, max_model_len=16)
    assert "at most 0" not in str(caught.value)


def test_layers_must_agree_on_the_block_size() -> None:
    other = FullAttentionSpec(block_size=32, num_kv_heads=2, head_size=64, dtype="bfloat16")
    with pytest.raises(ConfigError, match=r"\[16, 32\]"):
        plan_kv_cache({"a": SPEC, "b": other}, 100 * PAGE, max_model_len=16)
    with pytest.raises(ConfigError, match="no layer"):
        plan_kv_cache({}, 100 * PAGE, max_model_len=16)
