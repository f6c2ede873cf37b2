"""Divide the logits by each row's temperature."""

from __future__ import annotations

import torch

from engine.sampling.batch import SamplingBatch
from engine.sampling.processors.column import ColumnProcessor
from engine.types.schedule import NewRow


class Temperature(ColumnProcessor):
    """Temperature; 1 is neutral."""

    def __init__(self, num_rows: int) -> None:
        super().__init__(num_rows, neutral=1.0)

    def get_value(self, new_row: NewRow) -> float:
        return new_row.params.temperature

    def apply(self, logits_BV: torch.Tensor, batch: SamplingBatch) -> None:
        logits_BV.div_(self.column.gather(batch)[:, None])
