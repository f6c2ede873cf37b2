"""Keep the k most likely tokens, then the smallest set with probability mass p."""

from __future__ import annotations

import kernels
import numpy as np
import torch

from engine.sampling.batch import SamplingBatch
from engine.sampling.processors.base import Processor
from engine.sampling.processors.column import Column
from engine.types.schedule import NewRow


class TopKTopP(Processor):
    """Both filters in one step, since one pass over the vocabulary serves them."""

    def __init__(self, num_rows: int, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._top_k = Column(num_rows, vocab_size, np.int32)
        self._top_p = Column(num_rows, 1.0, np.float32)

    def add(self, new_row: NewRow) -> None:
        params = new_row.params
        if params.is_greedy:
            self.remove(new_row.row)
            return
        self._top_k.set(new_row.row, min(params.top_k, self._vocab_size) or self._vocab_size)
        self._top_p.set(new_row.row, params.top_p)

    def remove(self, row: int) -> None:
        self._top_k.set(row, self._vocab_size)
        self._top_p.set(row, 1.0)

    @property
    def is_active(self) -> bool:
        return self._top_k.num_set > 0 or self._top_p.num_set > 0

    def apply(self, logits_BV: torch.Tensor, batch: SamplingBatch) -> None:
        top_k = self._top_k.gather(batch) if self._top_k.num_set else None
        top_p = self._top_p.gather(batch) if self._top_p.num_set else None
        kernels.apply_top_k_top_p(logits_BV, top_k, top_p)
