"""A parameter that takes its own shard out of a checkpoint's full tensor.

Knows which of its dimensions is cut how; it knows neither the layer around it nor the checkpoint's names.
"""

from __future__ import annotations

import torch
from torch import nn

from engine.distributed.sharding import Part, ShardId, whole


class ShardedParameter(nn.Parameter):
    """A tensor of this rank and its place in the full one; never trained.

    Attributes:
        outputs: parts of the output dimension, in order.
        inputs: the part of the input dimension, or None where there is none (a bias, a norm).
        output_dim, input_dim: where these dimensions lie in the tensor.
    """

    outputs: tuple[Part, ...]
    inputs: Part | None
    output_dim: int
    input_dim: int

    def __new__(
        cls,
        data: torch.Tensor,
        *,
        outputs: tuple[Part, ...] | None = None,
        inputs: Part | None = None,
        output_dim: int = 0,
        input_dim: int = 1,
    ) -> ShardedParameter:
        parameter: ShardedParameter = torch.Tensor._make_subclass(cls, data, False)
        parameter.outputs = whole(data.shape[output_dim]) if outputs is None else outputs
        parameter.inputs = inputs
        parameter.output_dim = output_dim
        parameter.input_dim = input_dim
        return parameter

    def source_shapes(self) -> dict[ShardId, tuple[int, ...]]:
        """Return the shape of each part's full tensor in a checkpoint."""
        shapes: dict[ShardId, tuple[int, ...]] = {}
        for part in self.outputs:
            shape = list(self.shape)
            shape[self.output_dim] = part.source_size
            if self.inputs is not None:
                shape[self.input_dim] = self.inputs.source_size
            shapes[part.shard_id] = tuple(shape)
        return shapes

    def load_shard(self, loaded: torch.Tensor, shard_id: ShardId | None = None) -> None:
        """Copy this rank's share of a full tensor; None means all parts, fused in the checkpoint too.

        Padding past the end of the full tensor becomes zero.

        Raises:
            ValueError: the tensor has another shape than the configuration says.
        """
        parts = [part for part in self.outputs if shard_id is None or part.shard_id == shard_id]
        assert parts, f"no part {shard_id!r}"
        expected = list(self.source_shapes()[parts[0].shard_id])
        expected[self.output_dim] = sum(part.source_size for part in parts)
        if list(loaded.shape) != expected:
            raise ValueError(f"has shape {list(loaded.shape)}, where the configuration says {expected}")
        offset = 0
        for part in parts:
            self._copy_part(loaded.narrow(self.output_dim, offset, part.source_size), part)
            offset += part.source_size

    def _copy_part(self, source: torch.Tensor, part: Part) -> None:
        target = self.data.narrow(self.output_dim, part.start, part.size)
        if self.inputs is not None:
            source = source.narrow(self.input_dim, self.inputs.source_start, self.inputs.size)
        if part.num_loaded < part.size:
            target.zero_()
        if part.num_loaded:
            source = source.narrow(self.output_dim, part.source_start, part.num_loaded)
            target.narrow(self.output_dim, 0, part.num_loaded).copy_(source)
