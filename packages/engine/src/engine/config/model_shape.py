"""Sizes of a decoder model as its config.json states them, under one name each.

Knows the keys that checkpoint authors use; it loads nothing and judges nothing but that a size is a number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.types.errors import CheckpointError
from engine.types.info import CheckpointFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """Sizes that decide how a model is split and which attention backend can serve it."""

    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    intermediate_size: int
    """Width of the feed-forward layer; 0 where the checkpoint does not say."""
    has_sliding_window: bool
    has_soft_cap: bool
    num_experts: int
    """0 for a dense model."""


def read_shape(facts: CheckpointFacts) -> ModelShape:
    """Return the sizes of the text model.

    Raises:
        CheckpointError: a size that every decoder needs is missing or not a positive integer.
    """
    config = facts.config
    text: Mapping[str, Any] = {**config, **(config.get("text_config") or {})}  # JSON of the checkpoint
    num_heads = _size(text, "num_attention_heads", facts.path)
    head_size = text.get("head_dim") or _size(text, "hidden_size", facts.path) // num_heads
    window = text.get("sliding_window")
    return ModelShape(
        num_layers=_size(text, "num_hidden_layers", facts.path),
        num_heads=num_heads,
        num_kv_heads=int(text.get("num_key_value_heads") or num_heads),
        head_size=int(head_size),
        intermediate_size=int(text.get("intermediate_size") or 0),
        # Qwen2 states a window and, beside it, that it is not used.
        has_sliding_window=bool(window) and text.get("use_sliding_window") is not False,
        has_soft_cap=bool(text.get("attn_logit_softcapping")),
        num_experts=int(text.get("num_local_experts") or text.get("num_experts") or 0),
    )


def _size(config: Mapping[str, Any], key: str, path: str) -> int:
    value = config.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise CheckpointError(
            f"{path}: {key}={value!r} in its configuration; a positive integer is needed. "
            "The checkpoint is incomplete or of another kind."
        )
    return value
