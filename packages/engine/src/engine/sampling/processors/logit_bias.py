"""A request's own additions to the logits of single tokens."""

from __future__ import annotations

import torch

from engine.sampling.batch import SamplingBatch
from engine.sampling.processors.sparse import SparseProcessor
from engine.types.schedule import NewRow


class LogitBias(SparseProcessor[dict[int, float]]):
    """Adds `logit_bias`."""

    def build_state(self, new_row: NewRow) -> dict[int, float] | None:
        return new_row.params.logit_bias or None

    def apply(self, logits_BV: torch.Tensor, batch: SamplingBatch) -> None:
        lines: list[int] = []
        ids: list[int] = []
        values: list[float] = []
        for line, bias in self.lines(batch):
            lines.extend([line] * len(bias))
            ids.extend(bias.keys())
            values.extend(bias.values())
        if not lines:
            return
        device = logits_BV.device
        index = (torch.tensor(lines, device=device), torch.tensor(ids, device=device))
        logits_BV[index] += torch.tensor(values, dtype=logits_BV.dtype, device=device)
