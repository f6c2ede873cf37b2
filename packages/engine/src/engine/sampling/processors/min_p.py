"""Drop tokens whose probability is below a share of the most likely one's."""

from __future__ import annotations

import kernels
import torch

from engine.sampling.batch import SamplingBatch
from engine.sampling.processors.column import ColumnProcessor
from engine.types.schedule import NewRow


class MinP(ColumnProcessor):
    """min-p; 0 is neutral."""

    def __init__(self, num_rows: int) -> None:
        super().__init__(num_rows, neutral=0.0)

    def get_value(self, new_row: NewRow) -> float:
        return new_row.params.min_p

    def apply(self, logits_BV: torch.Tensor, batch: SamplingBatch) -> None:
        kernels.apply_min_p(logits_BV, self.column.gather(batch))
