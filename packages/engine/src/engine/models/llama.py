"""Llama and the families that differ from it by a window or a bias: Mistral, Qwen 2, SmolLM.

Source: Touvron et al., LLaMA (2023), section 2.2; Jiang et al., Mistral 7B (2023), section 2 (sliding
window); Yang et al., Qwen2 (2024), section 2.2 (biases on queries, keys and values).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.layers.causal_lm import CausalLM
from engine.layers.decoder import DecoderShape, read_decoder_shape, read_size
from engine.types.errors import CheckpointError


class LlamaForCausalLM(CausalLM):
    """The decoder of `engine.layers.decoder` as it is; a checkpoint's keys say which variant."""

    @classmethod
    def read_shape(cls, config: Mapping[str, Any]) -> DecoderShape:
        if _is_family(config, "qwen2", "Qwen2ForCausalLM"):
            # Its checkpoints state no bias: the family always has them on queries, keys and values alone.
            return read_decoder_shape(config, sliding_windows=_qwen2_windows(config), qkv_bias=True)
        window = 0
        if _is_family(config, "mistral", "MistralForCausalLM"):
            # Some Llama checkpoints carry the key too, and were trained without a window.
            window = int(config.get("sliding_window") or 0)
        has_bias = bool(config.get("attention_bias", False))
        return read_decoder_shape(
            config,
            sliding_windows=(window,) * read_size(config, "num_hidden_layers"),
            qkv_bias=has_bias,
            output_bias=has_bias,
            mlp_bias=bool(config.get("mlp_bias", False)),
        )


def _is_family(config: Mapping[str, Any], model_type: str, architecture: str) -> bool:
    return config.get("model_type") == model_type or architecture in (config.get("architectures") or ())


def _qwen2_windows(config: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the window of each layer: named per layer by newer checkpoints, else from a layer upwards."""
    num_layers = read_size(config, "num_hidden_layers")
    if not config.get("use_sliding_window", False):
        return (0,) * num_layers
    window = int(config.get("sliding_window") or 0)
    kinds = config.get("layer_types")
    if kinds:
        if len(kinds) != num_layers:
            raise CheckpointError(f"layer_types names {len(kinds)} layers, num_hidden_layers={num_layers}.")
        return tuple(window if kind == "sliding_attention" else 0 for kind in kinds)
    first = int(config.get("max_window_layers", num_layers))
    return tuple(window if layer >= first else 0 for layer in range(num_layers))
