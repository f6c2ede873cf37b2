"""Gated activations in plain torch: act(first half) * second half.

The activation is rounded to the tensor's type before the product, as in the published model code. Letters:
T tokens, F intermediate size; the input holds [gate | up], 2F wide.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F


def silu_and_mul(x_T2F: torch.Tensor) -> torch.Tensor:
    """Return silu(gate) * up."""
    gate_TF, up_TF = _halves(x_T2F)
    return F.silu(gate_TF.float()).to(x_T2F.dtype) * up_TF


def gelu_and_mul(x_T2F: torch.Tensor, approximate: str = "none") -> torch.Tensor:
    """Return gelu(gate) * up; `approximate` is "none" (erf) or "tanh"."""
    if approximate not in ("none", "tanh"):
        raise ValueError(f"approximate: {approximate!r} is not 'none' or 'tanh'")
    gate_TF, up_TF = _halves(x_T2F)
    return F.gelu(gate_TF.float(), approximate=approximate).to(x_T2F.dtype) * up_TF


def _halves(x_T2F: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    width = x_T2F.shape[-1]
    if width % 2:
        raise ValueError(f"x: the last dimension holds [gate | up] and must be even, not {width}")
    gate, up = x_T2F.chunk(2, dim=-1)
    return gate, up
