"""A linear layer in plain torch. Letters: T tokens, I inputs, O outputs."""

from __future__ import annotations

import torch


def linear(x_TI: torch.Tensor, weight_OI: torch.Tensor, bias_O: torch.Tensor | None) -> torch.Tensor:
    """Return x @ weight^T + bias."""
    return torch.nn.functional.linear(x_TI, weight_OI, bias_O)
