"""Gated activations by the names that checkpoints use. Letters: T tokens, F feed-forward width."""

from __future__ import annotations

from collections.abc import Callable

import kernels
import torch

from engine.types.errors import CheckpointError

GatedActivation = Callable[[torch.Tensor], torch.Tensor]
"""[T, 2F] = [gate | up] -> [T, F]."""


def get_gated_activation(name: str) -> GatedActivation:
    """Return act(gate) * up for a checkpoint's `hidden_act`.

    Raises:
        CheckpointError: the activation is not known.
    """
    if name in ("silu", "swish"):
        return kernels.silu_and_mul
    if name == "gelu":
        return kernels.gelu_and_mul
    if name in ("gelu_pytorch_tanh", "gelu_new"):
        return _gelu_tanh_and_mul
    raise CheckpointError(
        f"hidden_act={name!r} is not supported; known are silu, swish, gelu, gelu_pytorch_tanh, gelu_new."
    )


def _gelu_tanh_and_mul(x_T2F: torch.Tensor) -> torch.Tensor:
    return kernels.gelu_and_mul(x_T2F, "tanh")
