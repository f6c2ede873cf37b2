"""Only the allowed token ids of a request may be sampled."""

from __future__ import annotations

import torch

from engine.sampling.batch import SamplingBatch
from engine.sampling.processors.sparse import SparseProcessor
from engine.types.schedule import NewRow


class AllowedTokens(SparseProcessor[list[int]]):
    """Masks everything outside `allowed_token_ids`."""

    def build_state(self, new_row: NewRow) -> list[int] | None:
        return new_row.params.allowed_token_ids

    def apply(self, logits_BV: torch.Tensor, batch: SamplingBatch) -> None:
        for line, ids in self.lines(batch):
            index = torch.tensor(ids, dtype=torch.int64, device=logits_BV.device)
            kept = logits_BV[line, index]
            logits_BV[line] = float("-inf")
            logits_BV[line, index] = kept
