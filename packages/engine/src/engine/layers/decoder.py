"""The decoder that most families share: pre-norm blocks of rotary attention and a gated feed-forward layer.

A family says what its checkpoints' numbers mean by making a `DecoderShape`, and overrides what its paper does
otherwise. Module names are those of the checkpoints, so that parameter paths are checkpoint names.
Letters: T tokens, E hidden size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from engine.attention.layer import Attention
from engine.layers.context import ModelContext
from engine.layers.embedding import VocabParallelEmbedding
from engine.layers.linear import QKVParallelLinear, RowParallelLinear
from engine.layers.mlp import GatedMLP
from engine.layers.norm import RMSNorm
from engine.layers.rotary import RopeSettings, RotaryEmbedding, read_rope
from engine.types.errors import CheckpointError


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderShape:
    """The sizes and switches of one checkpoint."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    norm_eps: float
    hidden_act: str
    tie_word_embeddings: bool
    rope: RopeSettings
    sliding_windows: tuple[int, ...]
    """Per layer: keys that a query sees, its own among them; 0 is all."""
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool

    @property
    def num_layers(self) -> int:
        """Number of blocks."""
        return len(self.sliding_windows)


def read_decoder_shape(
    config: Mapping[str, Any],  # JSON of the checkpoint
    *,
    sliding_windows: tuple[int, ...],
    qkv_bias: bool = False,
    output_bias: bool = False,
    mlp_bias: bool = False,
) -> DecoderShape:
    """Return the shape from the keys that all these families share.

    Raises:
        CheckpointError: a key is missing or its value cannot be used.
    """
    num_heads = read_size(config, "num_attention_heads")
    hidden_size = read_size(config, "hidden_size")
    num_kv_heads = read_size(config, "num_key_value_heads", num_heads)
    if num_heads % num_kv_heads:
        raise CheckpointError(
            f"num_attention_heads={num_heads} is not a multiple of num_key_value_heads={num_kv_heads}."
        )
    head_size = read_size(config, "head_dim", hidden_size // num_heads)
    return DecoderShape(
        vocab_size=read_size(config, "vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=read_size(config, "intermediate_size"),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_size=head_size,
        norm_eps=float(config.get("rms_norm_eps", 1e-6)),
        hidden_act=str(config.get("hidden_act", "silu")),
        tie_word_embeddings=bool(config.get("tie_word_embeddings", False)),
        rope=read_rope(config, head_size),
        sliding_windows=sliding_windows,
        qkv_bias=qkv_bias,
        output_bias=output_bias,
        mlp_bias=mlp_bias,
    )


def read_size(config: Mapping[str, Any], key: str, default: int | None = None) -> int:
    """Return a positive integer of a checkpoint's configuration; null counts as missing.

    Raises:
        CheckpointError: it is missing and has no default, or is something else.
    """
    value = config.get(key)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise CheckpointError(
            f"{key}={value!r} in the checkpoint's configuration; a positive integer is needed."
        )
    return value


class DecoderAttention(nn.Module):
    """Self-attention of one block: one projection in, rotary, attention, one projection out."""

    def __init__(
        self,
        shape: DecoderShape,
        layer: int,
        rotary: RotaryEmbedding,
        *,
        context: ModelContext,
        prefix: str,
    ) -> None:
        super().__init__()
        self.qkv_proj = QKVParallelLinear(
            shape.hidden_size,
            shape.head_size,
            shape.num_heads,
            shape.num_kv_heads,
            bias=shape.qkv_bias,
            context=context,
            prefix=f"{prefix}.qkv_proj",
        )
        self.o_proj = RowParallelLinear(
            shape.num_heads * shape.head_size,
            shape.hidden_size,
            bias=shape.output_bias,
            context=context,
            prefix=f"{prefix}.o_proj",
        )
        self.attn = Attention(
            self.qkv_proj.num_heads,
            shape.head_size,
            shape.head_size**-0.5,
            self.qkv_proj.num_kv_heads,
            context=context,
            prefix=f"{prefix}.attn",
            sliding_window=shape.sliding_windows[layer],
        )
        self._rotary = (rotary,)  # in a tuple: one table for all layers, registered by none of them
        self._sizes = list(self.qkv_proj.sizes)

    def forward(self, positions_T: torch.Tensor, hidden_TE: torch.Tensor) -> torch.Tensor:
        """Return the layer's contribution to the residual stream."""
        query, key, value = self.qkv_proj(hidden_TE).split(self._sizes, dim=-1)
        self._rotary[0](positions_T, query, key)
        return self.o_proj(self.attn(query, key, value))  # type: ignore[no-any-return]


class DecoderLayer(nn.Module):
    """One block. The residual stream travels beside the hidden state, so that each sum fuses with a norm."""

    def __init__(
        self,
        shape: DecoderShape,
        layer: int,
        rotary: RotaryEmbedding,
        *,
        context: ModelContext,
        prefix: str,
    ) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(shape.hidden_size, shape.norm_eps, context=context)
        self.self_attn = DecoderAttention(shape, layer, rotary, context=context, prefix=f"{prefix}.self_attn")
        self.post_attention_layernorm = RMSNorm(shape.hidden_size, shape.norm_eps, context=context)
        self.mlp = GatedMLP(
            shape.hidden_size,
            shape.intermediate_size,
            shape.hidden_act,
            bias=shape.mlp_bias,
            context=context,
            prefix=f"{prefix}.mlp",
        )

    def forward(
        self, positions_T: torch.Tensor, hidden_TE: torch.Tensor, residual_TE: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (contribution of the block's last part, residual stream without it)."""
        if residual_TE is None:
            residual_TE = hidden_TE
            hidden_TE = self.input_layernorm(hidden_TE)
        else:
            hidden_TE, residual_TE = self.input_layernorm.add_and_norm(hidden_TE, residual_TE)
        hidden_TE = self.self_attn(positions_T, hidden_TE)
        hidden_TE, residual_TE = self.post_attention_layernorm.add_and_norm(hidden_TE, residual_TE)
        return self.mlp(hidden_TE), residual_TE


class DecoderModel(nn.Module):
    """Embedding, blocks, final norm."""

    layer_class: type[DecoderLayer] = DecoderLayer
    """The block; a family with another one overrides this."""

    def __init__(self, shape: DecoderShape, *, context: ModelContext, prefix: str) -> None:
        super().__init__()
        self.embed_tokens = VocabParallelEmbedding(shape.vocab_size, shape.hidden_size, context=context)
        rotary = RotaryEmbedding(
            shape.rope,
            head_size=shape.head_size,
            max_position=context.max_model_len,
            device=context.device,
        )
        self.layers = nn.ModuleList(
            self.layer_class(shape, layer, rotary, context=context, prefix=f"{prefix}.layers.{layer}")
            for layer in range(shape.num_layers)
        )
        self.norm = RMSNorm(shape.hidden_size, shape.norm_eps, context=context)

    def forward(self, input_ids_T: torch.Tensor, positions_T: torch.Tensor) -> torch.Tensor:
        """Return the final hidden states, [T, E]."""
        hidden_TE: torch.Tensor = self.embed_tokens(input_ids_T)
        residual_TE: torch.Tensor | None = None
        for layer in self.layers:
            hidden_TE, residual_TE = layer(positions_T, hidden_TE, residual_TE)
        assert residual_TE is not None, "a model has layers"
        return self.norm.add_and_norm(hidden_TE, residual_TE)[0]
