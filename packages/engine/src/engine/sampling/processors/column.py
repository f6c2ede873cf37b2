"""Base of steps with one number per row: a numpy column over the request table."""

from __future__ import annotations

from abc import abstractmethod

import numpy as np
import numpy.typing as npt
import torch

from engine.sampling.batch import SamplingBatch
from engine.sampling.processors.base import Processor
from engine.types.schedule import NewRow


class Column:
    """One number per row, a neutral value where a row did not ask, and how many rows did."""

    def __init__(self, num_rows: int, neutral: float, dtype: type[np.generic]) -> None:
        self.neutral = neutral
        self.values_R: npt.NDArray[np.generic] = np.full(num_rows, neutral, dtype)
        self.num_set = 0

    def set(self, row: int, value: float) -> None:
        """Store a row's value."""
        self.num_set += int(value != self.neutral) - int(self.values_R[row] != self.neutral)
        self.values_R[row] = value

    def gather(self, batch: SamplingBatch) -> torch.Tensor:
        """Return the batch's values on its device."""
        return torch.from_numpy(self.values_R[batch.rows_B]).to(batch.device)


class ColumnProcessor(Processor):
    """A step driven by a single column; greedy rows stay neutral, since it cannot change their maximum."""

    def __init__(self, num_rows: int, neutral: float, dtype: type[np.generic] = np.float32) -> None:
        self.column = Column(num_rows, neutral, dtype)

    @abstractmethod
    def get_value(self, new_row: NewRow) -> float:
        """Return the request's value."""

    def add(self, new_row: NewRow) -> None:
        is_greedy = new_row.params.is_greedy
        self.column.set(new_row.row, self.column.neutral if is_greedy else self.get_value(new_row))

    def remove(self, row: int) -> None:
        self.column.set(row, self.column.neutral)

    @property
    def is_active(self) -> bool:
        return self.column.num_set > 0
