"""Token embedding and output head, their vocabulary cut over the tensor-parallel ranks.

Letters: T tokens, E hidden size, V vocabulary, R lines.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from engine.distributed.groups import get_tp_group
from engine.distributed.parameter import ShardedParameter
from engine.distributed.sharding import split_vocabulary, whole
from engine.layers.context import ModelContext
from engine.layers.linear import Linear
from engine.quantization.method import LinearLayout


class VocabParallelEmbedding(nn.Module):
    """A table of which each rank holds some rows; ids must lie within the vocabulary."""

    weight: ShardedParameter

    def __init__(self, vocab_size: int, hidden_size: int, *, context: ModelContext) -> None:
        super().__init__()
        self._group = get_tp_group()
        rows = split_vocabulary(vocab_size, self._group.rank, self._group.world_size)
        self._rows = rows[0]
        data = torch.empty(self._rows.size, hidden_size, dtype=context.dtype, device=context.device)
        self.weight = ShardedParameter(data, outputs=rows, inputs=whole(hidden_size)[0])

    def forward(self, input_ids_T: torch.Tensor) -> torch.Tensor:
        """Return each token's row, [T, E]."""
        if self._group.world_size == 1:
            return F.embedding(input_ids_T, self.weight)
        local_T = input_ids_T - self._rows.source_start
        is_foreign_T = (local_T < 0) | (local_T >= self._rows.size)
        rows_TE = F.embedding(local_T.masked_fill(is_foreign_T, 0), self.weight)
        return self._group.all_reduce(rows_TE.masked_fill(is_foreign_T.unsqueeze(-1), 0))


class ParallelLMHead(Linear):
    """The output head: each rank computes the logits of its rows.

    Args:
        tied_to: the embedding whose table it shares, or None for a weight of its own.
    """

    def __init__(
        self,
        vocab_size: int,
        hidden_size: int,
        *,
        bias: bool = False,
        tied_to: VocabParallelEmbedding | None = None,
        context: ModelContext,
        prefix: str,
    ) -> None:
        group = get_tp_group()
        rows = split_vocabulary(vocab_size, group.rank, group.world_size)
        layout = LinearLayout(outputs=rows, inputs=whole(hidden_size)[0])
        super().__init__(
            layout,
            bias=bias,
            context=context,
            prefix=prefix,
            shared_weight=None if tied_to is None else tied_to.weight,
        )
