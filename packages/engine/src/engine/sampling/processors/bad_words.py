"""Words that a request must not generate, as token sequences."""

from __future__ import annotations

import torch

from engine.sampling.batch import SamplingBatch
from engine.sampling.processors.sparse import SparseProcessor
from engine.types.schedule import NewRow


class BadWords(SparseProcessor[list[list[int]]]):
    """Bans the last token of a sequence once all its earlier tokens are the end of the output.

    Only generated tokens count: a word that begins in the prompt is the caller's own.
    """

    def build_state(self, new_row: NewRow) -> list[list[int]] | None:
        return new_row.bad_words_token_ids or None

    def apply(self, logits_BV: torch.Tensor, batch: SamplingBatch) -> None:
        lines: list[int] = []
        ids: list[int] = []
        for line, words in self.lines(batch):
            longest = max(len(word) for word in words) - 1
            num_tokens = int(batch.num_tokens_B[line])
            known = min(longest, int(batch.num_output_tokens_B[line]))
            row = batch.rows_B[line]
            tail = batch.token_ids_RL[row, num_tokens - known : num_tokens].tolist()
            for word in words:
                num_before = len(word) - 1
                if num_before <= known and tail[known - num_before :] == word[:-1]:
                    lines.append(line)
                    ids.append(word[-1])
        if lines:
            device = logits_BV.device
            logits_BV[torch.tensor(lines, device=device), torch.tensor(ids, device=device)] = float("-inf")
