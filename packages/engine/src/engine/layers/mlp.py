"""The gated feed-forward layer: down(act(gate(x)) * up(x))."""

from __future__ import annotations

import torch
from torch import nn

from engine.layers.activation import get_gated_activation
from engine.layers.context import ModelContext
from engine.layers.linear import MergedColumnParallelLinear, RowParallelLinear


class GatedMLP(nn.Module):
    """Gate and up run as one multiplication."""

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        hidden_act: str,
        *,
        bias: bool,
        context: ModelContext,
        prefix: str,
    ) -> None:
        super().__init__()
        self.gate_up_proj = MergedColumnParallelLinear(
            hidden_size,
            {"gate": intermediate_size, "up": intermediate_size},
            bias=bias,
            context=context,
            prefix=f"{prefix}.gate_up_proj",
        )
        self.down_proj = RowParallelLinear(
            intermediate_size, hidden_size, bias=bias, context=context, prefix=f"{prefix}.down_proj"
        )
        self._activation = get_gated_activation(hidden_act)

    def forward(self, x_TE: torch.Tensor) -> torch.Tensor:
        """Return the layer's contribution to the residual stream."""
        return self.down_proj(self._activation(self.gate_up_proj(x_TE)))  # type: ignore[no-any-return]
