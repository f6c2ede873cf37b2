"""The sampler: a recipe over small steps.

Order, as in vLLM: steps that may change the most likely token (allowed ids, bad words, minimum of tokens,
bias, penalties), the greedy choice, steps that cannot (temperature, min-p, top-k, top-p), the random choice.
"""

from __future__ import annotations

import kernels
import numpy as np
import torch

from engine.sampling.batch import SamplerOutput, SamplingBatch
from engine.sampling.processors.allowed_tokens import AllowedTokens
from engine.sampling.processors.bad_words import BadWords
from engine.sampling.processors.base import Processor
from engine.sampling.processors.logit_bias import LogitBias
from engine.sampling.processors.min_p import MinP
from engine.sampling.processors.min_tokens import MinTokens
from engine.sampling.processors.penalties import Penalties
from engine.sampling.processors.temperature import Temperature
from engine.sampling.processors.top_k_top_p import TopKTopP
from engine.types.schedule import NewRow


class Sampler:
    """Owns the sampling state of every row; called once per step with the logits of the rows that sample.

    A row's token depends on its own logits, parameters, seed and position alone, never on its neighbours.
    """

    def __init__(self, num_rows: int, vocab_size: int, device: torch.device) -> None:
        self._deciding_steps: list[Processor] = [
            AllowedTokens(),
            BadWords(),
            MinTokens(),
            LogitBias(),
            Penalties(vocab_size, device),
        ]
        self._shaping_steps: list[Processor] = [
            Temperature(num_rows),
            MinP(num_rows),
            TopKTopP(num_rows, vocab_size),
        ]
        self._is_random_R = np.zeros(num_rows, np.bool_)
        self._wants_logprobs_R = np.zeros(num_rows, np.bool_)
        self._seeds_R = np.zeros(num_rows, np.int64)

    def add(self, new_row: NewRow) -> None:
        """Take a row in."""
        for step in (*self._deciding_steps, *self._shaping_steps):
            step.add(new_row)
        params = new_row.params
        self._is_random_R[new_row.row] = not params.is_greedy
        self._wants_logprobs_R[new_row.row] = (
            params.logprobs is not None or params.logprob_token_ids is not None
        )
        self._seeds_R[new_row.row] = new_row.seed

    def remove(self, row: int) -> None:
        """Forget a row."""
        for step in (*self._deciding_steps, *self._shaping_steps):
            step.remove(row)
        self._is_random_R[row] = False
        self._wants_logprobs_R[row] = False

    def sample(self, logits_BV: torch.Tensor, batch: SamplingBatch) -> SamplerOutput:
        """Return one token per line. Mutates `logits_BV` and the steps' state."""
        failed_B = kernels.nonfinite_rows(logits_BV)
        logprob_lines = np.flatnonzero(self._wants_logprobs_R[batch.rows_B]).tolist()
        raw_logits = logits_BV[logprob_lines].clone() if logprob_lines else None
        if _apply(self._deciding_steps, logits_BV, batch):
            # Together they may have forbidden every token; a row without a choice fails instead of taking 0.
            failed_B = failed_B | kernels.nonfinite_rows(logits_BV)
        is_random_B = self._is_random_R[batch.rows_B]
        if not is_random_B.any():
            token_ids_B = logits_BV.argmax(dim=-1)
        elif is_random_B.all():
            token_ids_B = self._sample_random(logits_BV, batch)
        else:
            greedy_B = logits_BV.argmax(dim=-1)
            is_random = torch.from_numpy(is_random_B).to(logits_BV.device)
            token_ids_B = torch.where(is_random, self._sample_random(logits_BV, batch), greedy_B)
        for step in self._deciding_steps:
            if step.is_active:
                step.advance(token_ids_B, batch)
        return SamplerOutput(token_ids_B, failed_B, raw_logits, logprob_lines)

    def _sample_random(self, logits_BV: torch.Tensor, batch: SamplingBatch) -> torch.Tensor:
        _apply(self._shaping_steps, logits_BV, batch)
        seeds_B = torch.from_numpy(self._seeds_R[batch.rows_B]).to(logits_BV.device)
        positions_B = torch.from_numpy(batch.num_tokens_B).to(logits_BV.device)
        token_ids_B: torch.Tensor = kernels.gumbel_sample(logits_BV, seeds_B, positions_B)
        return token_ids_B


def _apply(steps: list[Processor], logits_BV: torch.Tensor, batch: SamplingBatch) -> bool:
    active = [step for step in steps if step.is_active]
    for step in active:
        step.apply(logits_BV, batch)
    return bool(active)
