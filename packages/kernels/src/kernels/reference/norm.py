"""Root-mean-square normalisation in plain torch.

Rounding follows the published model code: the normalised value is rounded to the tensor's type before it is
multiplied by the weight. Letters: T tokens, E hidden size.
"""

from __future__ import annotations

import torch


def rms_norm(x_TE: torch.Tensor, weight_E: torch.Tensor, eps: float) -> torch.Tensor:
    """Return x / rms(x) * weight, accumulated in float32."""
    if x_TE.dtype != weight_E.dtype:
        raise ValueError(
            f"weight: dtype {weight_E.dtype} differs from x ({x_TE.dtype}); convert it while loading"
        )
    if weight_E.shape != x_TE.shape[-1:]:
        raise ValueError(f"weight: shape {tuple(weight_E.shape)} must be [{x_TE.shape[-1]}]")
    x = x_TE.float()
    normed = x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + eps)
    return (normed.to(x_TE.dtype).float() * weight_E.float()).to(x_TE.dtype)


def fused_add_rms_norm(
    x_TE: torch.Tensor, residual_TE: torch.Tensor, weight_E: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (rms_norm(x + residual), x + residual); the sum is rounded before it is normalised."""
    if x_TE.shape != residual_TE.shape or x_TE.dtype != residual_TE.dtype:
        raise ValueError(
            f"residual: {tuple(residual_TE.shape)} {residual_TE.dtype} must be like x, "
            f"{tuple(x_TE.shape)} {x_TE.dtype}"
        )
    new_residual_TE = x_TE + residual_TE
    return rms_norm(new_residual_TE, weight_E, eps), new_residual_TE
