"""Root-mean-square normalisation. Letters: T tokens, E hidden size."""

from __future__ import annotations

import kernels
import torch
from torch import nn

from engine.distributed.parameter import ShardedParameter
from engine.layers.context import ModelContext


class RMSNorm(nn.Module):
    """x / rms(x) * weight, every rank the same."""

    def __init__(self, hidden_size: int, eps: float, *, context: ModelContext) -> None:
        super().__init__()
        self.eps = eps
        self.weight = ShardedParameter(torch.empty(hidden_size, dtype=context.dtype, device=context.device))
        # The same storage as the parameter; kept plain because module look-ups are slow.
        self._weight_E = self.weight.detach()

    def forward(self, x_TE: torch.Tensor) -> torch.Tensor:
        """Return the normalised input."""
        return kernels.rms_norm(x_TE, self._weight_E, self.eps)

    def add_and_norm(
        self, x_TE: torch.Tensor, residual_TE: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (normalised sum, sum) of the input and the residual stream."""
        return kernels.fused_add_rms_norm(x_TE, residual_TE, self._weight_E, self.eps)
