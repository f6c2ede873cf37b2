"""GGUF's names of tensors, and the names that the same tensors have in a Hugging Face checkpoint.

Knows the decoders that are translated (`engine.config.gguf_config`) and the one change of layout that their
conversion makes. Letters: H heads, D head size.
"""

from __future__ import annotations

import re

import torch

from engine.config.gguf_config import ROPE_FACTORS_TENSOR

IGNORED = frozenset({ROPE_FACTORS_TENSOR})
"""Tensors that are configuration and were read as such."""

_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_IN_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_LAYER_NAME = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
_TOP_NAME = re.compile(r"(\w+)\.(weight|bias)")


def translate_name(name: str) -> str:
    """Return the Hugging Face name; a name that has none is returned as it is, so that it is refused as
    such."""
    if (match := _LAYER_NAME.fullmatch(name)) and match[2] in _IN_LAYER:
        return f"model.layers.{match[1]}.{_IN_LAYER[match[2]]}.{match[3]}"
    if (match := _TOP_NAME.fullmatch(name)) and match[1] in _TOP:
        return f"{_TOP[match[1]]}.{match[2]}"
    return name


def get_interleaved(name: str) -> str | None:
    """Return `q` or `k` for a projection whose rows the conversion of Llama checkpoints reorders, else
    None."""
    match = _LAYER_NAME.fullmatch(name)
    return {"attn_q": "q", "attn_k": "k"}.get(match[2]) if match else None


def undo_interleaving(rows: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Put a Llama projection's rows back in order.

    GGUF pairs neighbouring rows of a head for its rotary embedding, [H, D / 2, 2]; ours turns the two halves
    of a head against each other, [H, 2, D / 2].

    Args:
        rows: first dimension H * D; what a row is does not matter, so packed bytes work too.
    """
    return rows.view(num_heads, -1, 2, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)
