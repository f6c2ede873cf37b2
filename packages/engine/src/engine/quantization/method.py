"""What a quantization method decides: which parameters a linear layer has and how it multiplies with them.

Layers ask the method of their context for a `LinearMethod` each and know nothing of the storage.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import nn

from engine.distributed.parameter import ShardedParameter
from engine.distributed.sharding import Part


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearLayout:
    """A linear layer's features on this rank."""

    outputs: tuple[Part, ...]
    inputs: Part

    @property
    def num_outputs(self) -> int:
        """Output features on this rank."""
        return sum(part.size for part in self.outputs)

    @property
    def num_inputs(self) -> int:
        """Input features on this rank."""
        return self.inputs.size


class LinearMethod(ABC):
    """Stores and multiplies the weight of one layer; owns whatever the weight becomes after loading."""

    @abstractmethod
    def create(
        self, layer: nn.Module, layout: LinearLayout, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        """Give the layer its parameters, not yet filled. Mutates: `layer`."""

    @abstractmethod
    def adopt(self, layer: nn.Module, weight: ShardedParameter) -> None:
        """Use another layer's plain weight, which stays as it is. Mutates: `layer`."""

    @abstractmethod
    def finish(self, layer: nn.Module) -> None:
        """Bring the loaded weight into the form that `apply` wants. Mutates: `layer`.

        Called once, after every parameter is loaded.
        """

    @abstractmethod
    def apply(self, x_TI: torch.Tensor, bias_O: torch.Tensor | None) -> torch.Tensor:
        """Return x W^T + bias for this rank's features."""


class QuantizationMethod(ABC):
    """A method as chosen in configuration; makes one `LinearMethod` per layer."""

    @abstractmethod
    def linear_method(self, prefix: str) -> LinearMethod:
        """Return the method for the layer of this name (some methods leave some layers plain)."""
