"""Linear layers that hold one rank's share and load it themselves.

Column parallel: each rank has some of the outputs. Row parallel: each rank has some of the inputs and the
results are summed. What the weight looks like and how it is multiplied is the quantization method's.
Letters: T tokens, I inputs, O outputs, both on this rank.
"""

from __future__ import annotations

import torch
from torch import nn

from engine.distributed.groups import get_tp_group
from engine.distributed.parameter import ShardedParameter
from engine.distributed.sharding import Part, ShardId, merge, split_even, split_qkv, whole
from engine.layers.context import ModelContext
from engine.quantization.method import LinearLayout


class Linear(nn.Module):
    """A linear layer of a given layout; the classes below choose the layout.

    After the weights are loaded, `finish` must be called once.

    Args:
        bias: whether there is one; it follows the outputs.
        prefix: name of the layer within the model.
        shared_weight: another layer's weight to use in place of one's own.
    """

    def __init__(
        self,
        layout: LinearLayout,
        *,
        bias: bool,
        context: ModelContext,
        prefix: str,
        shared_weight: ShardedParameter | None = None,
    ) -> None:
        super().__init__()
        self.layout = layout
        self.prefix = prefix
        self.method = context.quantization.linear_method(prefix)
        if shared_weight is None:
            self.method.create(self, layout, dtype=context.dtype, device=context.device)
        else:
            self.method.adopt(self, shared_weight)
        self._bias = self._create_bias(layout.outputs, context) if bias else None

    def finish(self) -> None:
        """Bring the loaded weight into its final form."""
        self.method.finish(self)

    def forward(self, x_TI: torch.Tensor) -> torch.Tensor:
        """Return x W^T + bias, [T, O]."""
        return self.method.apply(x_TI, self._bias)

    def _create_bias(self, outputs: tuple[Part, ...], context: ModelContext) -> torch.Tensor:
        size = sum(part.size for part in outputs)
        data = torch.empty(size, dtype=context.dtype, device=context.device)
        parameter = ShardedParameter(data, outputs=outputs)
        self.register_parameter("bias", parameter)
        # The same storage as the parameter; kept plain because module look-ups are slow.
        return parameter.detach()


class ReplicatedLinear(Linear):
    """Every rank holds and computes all of it."""

    def __init__(
        self, in_features: int, out_features: int, *, bias: bool, context: ModelContext, prefix: str
    ) -> None:
        layout = LinearLayout(outputs=whole(out_features), inputs=whole(in_features)[0])
        super().__init__(layout, bias=bias, context=context, prefix=prefix)


class MergedColumnParallelLinear(Linear):
    """Several linears of one input as one multiplication; each is cut evenly over the ranks.

    Args:
        out_features: size of each in full, by the name that `load_shard` knows it under.
    """

    def __init__(
        self,
        in_features: int,
        out_features: dict[ShardId, int],
        *,
        bias: bool,
        context: ModelContext,
        prefix: str,
    ) -> None:
        group = get_tp_group()
        outputs = merge(list(out_features.items()), group.rank, group.world_size, f"{prefix} outputs")
        layout = LinearLayout(outputs=outputs, inputs=whole(in_features)[0])
        super().__init__(layout, bias=bias, context=context, prefix=prefix)


class ColumnParallelLinear(MergedColumnParallelLinear):
    """One linear whose outputs are cut evenly over the ranks; the results stay where they are."""

    def __init__(
        self, in_features: int, out_features: int, *, bias: bool, context: ModelContext, prefix: str
    ) -> None:
        super().__init__(in_features, {0: out_features}, bias=bias, context=context, prefix=prefix)


class QKVParallelLinear(Linear):
    """Query, key and value projections as one multiplication, cut by heads.

    With more ranks than KV heads, several ranks hold the same one.

    Attributes:
        sizes: features of query, key and value on this rank.
    """

    def __init__(
        self,
        in_features: int,
        head_size: int,
        num_heads: int,
        num_kv_heads: int,
        *,
        bias: bool,
        context: ModelContext,
        prefix: str,
    ) -> None:
        group = get_tp_group()
        outputs = split_qkv(num_heads, num_kv_heads, head_size, group.rank, group.world_size)
        layout = LinearLayout(outputs=outputs, inputs=whole(in_features)[0])
        super().__init__(layout, bias=bias, context=context, prefix=prefix)
        self.sizes = tuple(part.size for part in outputs)
        self.num_heads = self.sizes[0] // head_size
        self.num_kv_heads = self.sizes[1] // head_size


class RowParallelLinear(Linear):
    """One linear whose inputs are cut evenly over the ranks; the results are summed, the bias added once."""

    def __init__(
        self, in_features: int, out_features: int, *, bias: bool, context: ModelContext, prefix: str
    ) -> None:
        group = get_tp_group()
        inputs = split_even(in_features, group.rank, group.world_size, f"{prefix} inputs")[0]
        layout = LinearLayout(outputs=whole(out_features), inputs=inputs)
        super().__init__(layout, bias=bias, context=context, prefix=prefix)
        self._group = group
        self._is_shared = group.world_size > 1
        # Every rank loads the bias; added by all it would count `world_size` times.
        self._own_bias = self._bias if group.is_first else None

    def forward(self, x_TI: torch.Tensor) -> torch.Tensor:
        out_TO = self.method.apply(x_TI, self._own_bias)
        return self._group.all_reduce(out_TO) if self._is_shared else out_TO
