"""What every layer is told when it is built: the choices that are the same all over the model."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine.attention.backend import AttentionBackend
from engine.quantization.method import QuantizationMethod


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelContext:
    """Made by the worker, handed down through every constructor."""

    dtype: torch.dtype
    """Of weights and activations."""
    device: torch.device
    quantization: QuantizationMethod
    attention_backend: type[AttentionBackend]
    cache_dtype: torch.dtype
    """Of keys and values at rest."""
    block_size: int
    """Tokens per cache block."""
    max_model_len: int
    """Most tokens of one sequence."""
