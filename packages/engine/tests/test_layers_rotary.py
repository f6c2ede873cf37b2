"""Rotary tables equal transformers' for every scaling method, under both generations of keys."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from engine.layers.rotary import RotaryEmbedding, read_rope
from engine.types.errors import CheckpointError
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

HEAD_SIZE = 16
CPU = torch.device("cpu")
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
METHODS: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "factor": 2.0},
    "llama3": LLAMA3,
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
    "yarn_untruncated": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 64,
        "beta_fast": 16.0,
        "beta_slow": 2.0,
        "truncate": False,
    },
    "yarn_mscale": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 64,
        "mscale": 1.0,
        "mscale_all_dim": 0.7,
    },
    "yarn_factor_given": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 64,
        "attention_factor": 1.3,
    },
}


def build_rope(config: dict[str, Any], *, max_position: int) -> RotaryEmbedding:
    settings = read_rope(config, HEAD_SIZE)
    return RotaryEmbedding(settings, head_size=HEAD_SIZE, max_position=max_position, device=CPU)


def hf_config(scaling: dict[str, Any]) -> LlamaConfig:
    return LlamaConfig(
        hidden_size=4 * HEAD_SIZE,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        rope_parameters={**scaling, "rope_theta": 5000.0},
    )


def expected(config: LlamaConfig, positions: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> Any:
    cos, sin = LlamaRotaryEmbedding(config)(query, positions[None])
    heads = (x.view(1, len(positions), -1, HEAD_SIZE).transpose(1, 2) for x in (query, key))
    return [x.transpose(1, 2).reshape(len(positions), -1) for x in apply_rotary_pos_emb(*heads, cos, sin)]


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("generation", ["rope_parameters", "rope_scaling", "rope_scaling_type"])
def test_rotation_equals_transformers(name: str, generation: str) -> None:
    scaling = METHODS[name]
    config: dict[str, Any] = {"max_position_embeddings": 256}
    if generation == "rope_parameters":
        config |= {"rope_parameters": {**scaling, "rope_theta": 5000.0}}
    elif generation == "rope_scaling":
        config |= {"rope_theta": 5000.0, "rope_scaling": scaling}
    else:  # the first checkpoints with scaling named the method `type`
        old = {("type" if key == "rope_type" else key): value for key, value in scaling.items()}
        config |= {"rope_theta": 5000.0, "rope_scaling": old}
    rope = build_rope(config, max_position=256)
    generator = torch.Generator().manual_seed(0)
    positions = torch.randint(0, 256, (40,), generator=generator)
    qkv = torch.randn(40, 8 * HEAD_SIZE, generator=generator)
    query, key, value = qkv.split([4 * HEAD_SIZE, 2 * HEAD_SIZE, 2 * HEAD_SIZE], dim=-1)
    want_query, want_key = expected(hf_config(scaling), positions, query.clone(), key.clone())
    untouched = value.clone()
    rope(positions, query, key)
    torch.testing.assert_close(query, want_query, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(key, want_key, atol=1e-5, rtol=1e-5)
    assert torch.equal(value, untouched)


def test_dynamic_scaling_grows_with_the_longest_possible_sequence() -> None:
    config = {"max_position_embeddings": 64, "rope_theta": 5000.0, "rope_scaling": METHODS["dynamic"]}
    rope = build_rope(config, max_position=128)
    longer = hf_config(METHODS["dynamic"])
    longer.max_position_embeddings = 64
    cos, _ = LlamaRotaryEmbedding(longer)(torch.zeros(1), torch.arange(128)[None])
    torch.testing.assert_close(rope.cos_sin_cache_PR[:, : HEAD_SIZE // 2], cos[0, :, : HEAD_SIZE // 2])


def test_original_length_beside_the_scaling_is_found() -> None:
    scaling = {"rope_type": "yarn", "factor": 4.0}
    config = {"max_position_embeddings": 256, "rope_scaling": scaling, "original_max_position_embeddings": 64}
    assert read_rope(config, HEAD_SIZE).number("original_max_position_embeddings") == 64


def test_partial_rotation_leaves_the_rest_of_a_head() -> None:
    config = {"max_position_embeddings": 32, "partial_rotary_factor": 0.5}
    rope = build_rope(config, max_position=32)
    query, key = torch.randn(3, HEAD_SIZE), torch.randn(3, HEAD_SIZE)
    before = query.clone()
    rope(torch.tensor([1, 2, 3]), query, key)
    assert torch.equal(query[:, 8:], before[:, 8:])
    assert not torch.equal(query[:, :8], before[:, :8])


def test_table_covers_exactly_the_positions_asked_for() -> None:
    settings = read_rope({"max_position_embeddings": 1024}, HEAD_SIZE)
    rope = RotaryEmbedding(settings, head_size=HEAD_SIZE, max_position=10, device=CPU)
    assert rope.cos_sin_cache_PR.shape == (10, HEAD_SIZE)
    assert rope.cos_sin_cache_PR.dtype is torch.float32


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"rope_scaling": {"rope_type": "spiral"}}, "'spiral'.*yarn"),
        ({"rope_scaling": {"rope_type": "linear"}}, "factor=None"),
        ({"rope_scaling": {"rope_type": "linear", "factor": "2"}}, "factor='2'"),
        ({"rope_scaling": {**LLAMA3, "high_freq_factor": 1.0}}, "high_freq_factor"),
        ({"partial_rotary_factor": 0.1}, "partial_rotary_factor=0.1"),
    ],
)
def test_scaling_that_cannot_be_used_is_refused_by_name(config: dict[str, Any], words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        build_rope({"max_position_embeddings": 64, **config}, max_position=64)
