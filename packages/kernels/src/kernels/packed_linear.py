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
    if weight_OI.device.type != "cpu" or not _can_pack(weight_OI.dtype):
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
    if x_TI.shape[0] == 0:
        return x_TI.new_empty((*x_TI.shape[:-1], weight.out_features))
    out_TO: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x_TI, weight.blocked, bias_O, "none", [], "")
    return out_TO


def _can_pack(dtype: torch.dtype) -> bool:
    """Return whether oneDNN has fast kernels for the type here.

    Measured on two cores of a Zen 5 server without AMX, all linears of a 135M model, ms packed / plain at 1,
    8, 32 and 128 rows: bfloat16 8.2 / 11.2, 9.6 / 12.9, 15.9 / 20.5, 43 / 47; float32 16 / 32, 16 / 44,
    29 / 68, 82 / 188. One row reads the weights at 33 GB/s, what the memory gives; plain wins nowhere.
    """
    if not torch._C._has_mkldnn:
        return False
    if dtype is torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return dtype is torch.float32
