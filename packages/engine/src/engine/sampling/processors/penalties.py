"""Repetition, presence and frequency penalties, over counts kept on the device.

Counts live in a pool of lines that grows with the number of rows that use penalties, not with the request
table: at 150k tokens of vocabulary a line is 0.75 MB.
"""

from __future__ import annotations

from dataclasses import dataclass

import kernels
import torch

from engine.sampling.batch import SamplingBatch
from engine.sampling.processors.sparse import SparseProcessor
from engine.types.schedule import NewRow

_FIRST_POOL_LINES = 4


@dataclass(frozen=True, slots=True)
class _RowPenalties:
    slot: int
    repetition: float
    presence: float
    frequency: float


class Penalties(SparseProcessor[_RowPenalties]):
    """Applies the three penalties; the prompt counts for repetition only, as in vLLM."""

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        super().__init__()
        self._vocab_size = vocab_size
        self._device = device
        self._free_slots: list[int] = []
        self._prompt_mask_PV = torch.zeros(0, vocab_size, dtype=torch.bool, device=device)
        self._output_counts_PV = torch.zeros(0, vocab_size, dtype=torch.int32, device=device)

    def build_state(self, new_row: NewRow) -> _RowPenalties | None:
        params = new_row.params
        if params.repetition_penalty == 1.0 and params.presence_penalty == params.frequency_penalty == 0.0:
            return None
        slot = self._take_slot()
        prompt = torch.tensor(new_row.token_ids[: new_row.num_prompt_tokens], device=self._device)
        # A resumed row brings the tokens it had generated; they count as output again.
        output = torch.tensor(new_row.token_ids[new_row.num_prompt_tokens :], device=self._device)
        self._prompt_mask_PV[slot] = False
        self._prompt_mask_PV[slot, prompt.long()] = True
        self._output_counts_PV[slot] = torch.bincount(output.long(), minlength=self._vocab_size).int()
        return _RowPenalties(
            slot, params.repetition_penalty, params.presence_penalty, params.frequency_penalty
        )

    def add(self, new_row: NewRow) -> None:
        self.remove(new_row.row)
        super().add(new_row)

    def remove(self, row: int) -> None:
        state = self._states.pop(row, None)
        if state is not None:
            self._free_slots.append(state.slot)

    def apply(self, logits_BV: torch.Tensor, batch: SamplingBatch) -> None:
        lines, states = self._select(batch)
        if not states:
            return
        device = self._device
        slots = torch.tensor([state.slot for state in states], device=device)
        index = torch.tensor(lines, device=device)
        is_all = len(lines) == logits_BV.shape[0]
        logits = logits_BV if is_all else logits_BV[index]
        kernels.apply_penalties(
            logits,
            self._prompt_mask_PV[slots],
            self._output_counts_PV[slots],
            torch.tensor([state.repetition for state in states], dtype=torch.float32, device=device),
            torch.tensor([state.presence for state in states], dtype=torch.float32, device=device),
            torch.tensor([state.frequency for state in states], dtype=torch.float32, device=device),
        )
        if not is_all:
            logits_BV[index] = logits

    def advance(self, token_ids_B: torch.Tensor, batch: SamplingBatch) -> None:
        lines, states = self._select(batch)
        if states:
            slots = torch.tensor([state.slot for state in states], device=self._device)
            tokens = token_ids_B[torch.tensor(lines, device=self._device)]
            self._output_counts_PV[slots, tokens] += 1

    def _select(self, batch: SamplingBatch) -> tuple[list[int], list[_RowPenalties]]:
        pairs = list(self.lines(batch))
        return [line for line, _ in pairs], [state for _, state in pairs]

    def _take_slot(self) -> int:
        if not self._free_slots:
            num_lines = self._prompt_mask_PV.shape[0]
            num_more = max(_FIRST_POOL_LINES, num_lines)
            mask = torch.zeros(num_more, self._vocab_size, dtype=torch.bool, device=self._device)
            counts = torch.zeros(num_more, self._vocab_size, dtype=torch.int32, device=self._device)
            self._prompt_mask_PV = torch.cat([self._prompt_mask_PV, mask])
            self._output_counts_PV = torch.cat([self._output_counts_PV, counts])
            self._free_slots = list(range(num_lines, num_lines + num_more))
        return self._free_slots.pop()
