"""Logprobs of prompt tokens: which hidden states to keep of a step, and what to make of them.

The hidden state of prompt token i gives the logits of token i + 1, so a step that computes tokens [a, b) of a
prompt reports tokens a + 1 .. b (the prompt's last hidden state belongs to the first generated token).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from engine.sampling.logprobs import compute_logprobs, num_prompt_candidates
from engine.types.runner_output import RowPromptLogprobs, TokenLogprobs
from engine.worker.request_table import RequestTable

IntArray = npt.NDArray[np.int64]

# Logits of a long prompt would be gigabytes (2,048 x 150k x 4 bytes), so they are made in slices.
_LINES_AT_ONCE = 128


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Consecutive prompt tokens of one row: the first reported token and how many."""

    row: int
    start: int
    count: int


@dataclass(frozen=True, slots=True)
class PromptLogprobsPlan:
    """What one step has to keep."""

    stretches: list[_Stretch]
    token_indices: IntArray
    """Indices into the step's tokens, all stretches one after the other."""


class PromptLogprobs:
    """Plans and computes; called by the model runner before and after the forward."""

    def __init__(
        self, compute_logits: Callable[[torch.Tensor], torch.Tensor], requests: RequestTable, vocab_size: int
    ) -> None:
        self._compute_logits = compute_logits
        self._requests = requests
        self._vocab_size = vocab_size

    def plan(self, rows_B: IntArray, num_scheduled_B: IntArray) -> PromptLogprobsPlan | None:
        """Return what to keep of this step (call before the computed counts advance), or None."""
        wanted = self._requests.prompt_logprob_rows
        if not wanted:
            return None
        stretches: list[_Stretch] = []
        indices: list[IntArray] = []
        first_token = 0
        for row, num_scheduled in zip(rows_B.tolist(), num_scheduled_B.tolist(), strict=True):
            if row in wanted:
                start = int(self._requests.num_computed_R[row])
                num_prompt = int(self._requests.num_prompt_tokens_R[row])
                count = min(num_scheduled, num_prompt - 1 - start)
                if count > 0:
                    stretches.append(_Stretch(row, start + 1, count))
                    indices.append(np.arange(first_token, first_token + count))
                if start + num_scheduled >= num_prompt - 1:
                    wanted.discard(row)
            first_token += num_scheduled
        return PromptLogprobsPlan(stretches, np.concatenate(indices)) if stretches else None

    def compute(self, plan: PromptLogprobsPlan, hidden: torch.Tensor) -> list[RowPromptLogprobs]:
        """Return the logprobs of each stretch. `hidden`: [sum of counts, E]."""
        result: list[RowPromptLogprobs] = []
        offset = 0
        for stretch in plan.stretches:
            lines = hidden[offset : offset + stretch.count]
            result.append(
                RowPromptLogprobs(stretch.row, stretch.start, self._compute_stretch(stretch, lines))
            )
            offset += stretch.count
        return result

    def _compute_stretch(self, stretch: _Stretch, hidden: torch.Tensor) -> TokenLogprobs:
        params = self._requests.params[stretch.row]
        num_top = 0 if params is None else num_prompt_candidates(params, self._vocab_size)
        tokens = self._requests.token_ids_RL[stretch.row, stretch.start : stretch.start + stretch.count]
        token_ids = torch.from_numpy(tokens.astype(np.int64)).to(hidden.device)
        parts = [
            compute_logprobs(self._compute_logits(some_hidden), some_ids, num_top)
            for some_hidden, some_ids in zip(
                torch.split(hidden, _LINES_AT_ONCE), torch.split(token_ids, _LINES_AT_ONCE), strict=True
            )
        ]
        return TokenLogprobs(
            [ids for part in parts for ids in part.token_ids],
            [values for part in parts for values in part.logprobs],
            [rank for part in parts for rank in part.ranks],
        )
