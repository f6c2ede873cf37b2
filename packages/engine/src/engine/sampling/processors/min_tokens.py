"""No end-of-sequence and no stop token before a request has its minimum of tokens."""

from __future__ import annotations

import torch

from engine.sampling.batch import SamplingBatch
from engine.sampling.processors.sparse import SparseProcessor
from engine.types.schedule import NewRow


class MinTokens(SparseProcessor[tuple[int, list[int]]]):
    """Bans the stop ids while fewer than `min_tokens` are generated; state is (min_tokens, stop ids)."""

    def build_state(self, new_row: NewRow) -> tuple[int, list[int]] | None:
        if new_row.params.min_tokens == 0 or not new_row.stop_token_ids:
            return None
        return new_row.params.min_tokens, new_row.stop_token_ids

    def apply(self, logits_BV: torch.Tensor, batch: SamplingBatch) -> None:
        lines: list[int] = []
        ids: list[int] = []
        for line, (min_tokens, stop_ids) in self.lines(batch):
            if batch.num_output_tokens_B[line] < min_tokens:
                lines.extend([line] * len(stop_ids))
                ids.extend(stop_ids)
        if lines:
            device = logits_BV.device
            logits_BV[torch.tensor(lines, device=device), torch.tensor(ids, device=device)] = float("-inf")
