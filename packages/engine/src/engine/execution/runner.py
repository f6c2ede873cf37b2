"""How a forward pass runs: one method, batch in, sampled rows out.

`EagerRunner` serves any shape on any device. Runners that compile or capture wrap it and fall through to it.
The sampler arrives as a callable; what it returns is handed on unread.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import torch

from engine.execution.input_batch import InputBatch
from engine.forward_context import set_forward_context

Sampled = TypeVar("Sampled")
"""What the sampler makes of logits."""

SampleCallback = Callable[[torch.Tensor], Sampled]
"""Logits of the sampling lines -> their tokens; may change the logits in place."""


class Model(Protocol):
    """What a runner needs of a model."""

    def __call__(self, input_ids_T: torch.Tensor, positions_T: torch.Tensor) -> torch.Tensor:
        """Return hidden states, [T, E]."""

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return float32 logits, [lines, V]."""


@dataclass(slots=True)
class RunnerOutput(Generic[Sampled]):
    """Result of one forward pass."""

    sampled: Sampled | None
    """None where no row samples in this step."""
    prompt_hidden: torch.Tensor | None
    """Hidden states of `InputBatch.prompt_indices`."""


class ForwardRunner(ABC):
    """Runs one batch."""

    @abstractmethod
    def run(self, batch: InputBatch, sample: SampleCallback[Sampled]) -> RunnerOutput[Sampled]:
        """Compute the batch and sample."""


class EagerRunner(ForwardRunner):
    """Calls the model as it is written."""

    def __init__(self, model: Model) -> None:
        self._model = model

    def run(self, batch: InputBatch, sample: SampleCallback[Sampled]) -> RunnerOutput[Sampled]:
        with set_forward_context(batch.attention):
            hidden_TE = self._model(batch.input_ids_T, batch.positions_T)
        prompt_hidden = None if batch.prompt_indices is None else hidden_TE[batch.prompt_indices]
        num_lines = batch.logits_indices_S.shape[0]
        if num_lines == 0:
            return RunnerOutput(None, prompt_hidden)
        # In a pure decode step every token samples, so the gather is skipped.
        lines = hidden_TE if num_lines == batch.num_tokens else hidden_TE[batch.logits_indices_S]
        logits = self._model.compute_logits(lines)
        return RunnerOutput(sample(logits), prompt_hidden)
