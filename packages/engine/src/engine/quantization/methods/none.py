"""Plain weights in the model's dtype.

On the CPU the loaded weight is repacked once into the layout that the matrix kernels read fastest, and the
plain copy is given back unless another layer still reads it (a tied embedding table).
"""

from __future__ import annotations

import kernels
import torch
from torch import nn

from engine.distributed.parameter import ShardedParameter
from engine.quantization.method import LinearLayout, LinearMethod, QuantizationMethod


class Unquantized(QuantizationMethod):
    """Keeps every layer plain."""

    def linear_method(self, prefix: str) -> LinearMethod:
        return UnquantizedLinear()


class UnquantizedLinear(LinearMethod):
    """One plain weight, [outputs, inputs]."""

    def __init__(self) -> None:
        # What `apply` multiplies with: the parameter's own storage, or its packed form. Held here because
        # looking up a module's parameter costs more than a small op's dispatch.
        self._operand: torch.Tensor | kernels.PackedLinear | None = None
        self._is_adopted = False

    def create(
        self, layer: nn.Module, layout: LinearLayout, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        data = torch.empty(layout.num_outputs, layout.num_inputs, dtype=dtype, device=device)
        weight = ShardedParameter(data, outputs=layout.outputs, inputs=layout.inputs)
        layer.register_parameter("weight", weight)
        self._operand = weight.detach()

    def adopt(self, layer: nn.Module, weight: ShardedParameter) -> None:
        layer.register_parameter("weight", weight)
        self._operand = weight.detach()
        self._is_adopted = True

    def finish(self, layer: nn.Module) -> None:
        weight = self._operand
        assert isinstance(weight, torch.Tensor), "finish comes once, after create"
        packed = kernels.pack_linear(weight) if weight.device.type == "cpu" else None
        if packed is None:
            return
        self._operand = packed
        if not self._is_adopted:
            # Both copies would double the model's memory.
            layer.register_parameter("weight", None)

    def apply(self, x_TI: torch.Tensor, bias_O: torch.Tensor | None) -> torch.Tensor:
        assert self._operand is not None, "create comes first"
        return kernels.linear(x_TI, self._operand, bias_O)
