"""Linear layers over weights laid out for the processor.

Knows which layout measured best for a weight; a caller packs once after loading and keeps the handle.

Letters: T tokens, I inputs, O outputs.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F


@dataclass(frozen=True, slots=True)
class PackedLinear:
    """A weight in oneDNN's blocked layout; made by `pack_linear`, read by `linear`."""

    blocked: torch.Tensor
    in_features: int
    out_features: int


def pack_linear(weight_OI: torch.Tensor) -> PackedLinear | None:
    """Return the weight in the layout the processor likes, or None where packing does not help.

    The weight itself is not needed afterwards unless it is also read elsewhere (a tied embedding).
    """
    if weight_OI.dim() != 2:
        raise ValueError(f"weight: shape {tuple(weight_OI.shape)} must be [outputs, inputs]")
    if weight_OI.device.type != "cpu" or not torch._C._has_mkldnn:
        return None
    if weight_OI.dtype is not torch.bfloat16 or not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return None
    with torch.no_grad():
        blocked = torch.ops.mkldnn._reorder_linear_weight(weight_OI.detach())
    return PackedLinear(blocked, in_features=weight_OI.shape[1], out_features=weight_OI.shape[0])


def linear(
    x_TI: torch.Tensor, weight: torch.Tensor | PackedLinear, bias_O: torch.Tensor | None = None
) -> torch.Tensor:
    """Return x @ weight^T + bias."""
    if isinstance(weight, torch.Tensor):
        return F.linear(x_TI, weight, bias_O)
    out_TO: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x_TI, weight.blocked, bias_O, "none", [], "")
    return out_TO
