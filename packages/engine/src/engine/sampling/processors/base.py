"""The interface of a sampling step."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch

from engine.sampling.batch import SamplingBatch
from engine.types.schedule import NewRow


class Processor(ABC):
    """One step over the logits, with the state of the rows that asked for it.

    `add` and `remove` are called for every row; a step keeps only those it concerns and is skipped while it
    has none, so a request pays for what it uses.
    """

    @abstractmethod
    def add(self, new_row: NewRow) -> None:
        """Take a row in; forget whatever stood there before."""

    @abstractmethod
    def remove(self, row: int) -> None:
        """Forget a row; unknown rows are fine."""

    @property
    @abstractmethod
    def is_active(self) -> bool:
        """Whether any row needs this step."""

    @abstractmethod
    def apply(self, logits_BV: torch.Tensor, batch: SamplingBatch) -> None:
        """Change the logits in place."""

    def advance(self, token_ids_B: torch.Tensor, batch: SamplingBatch) -> None:
        """Take note of the tokens that were sampled. Mutates the step's own state only."""
        return
