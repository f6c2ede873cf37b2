"""Base of steps that few rows use: a dictionary from row to that row's own data.

Building index tensors costs time in proportion to the rows that asked, never to the batch.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Generic, TypeVar

from engine.sampling.batch import SamplingBatch
from engine.sampling.processors.base import Processor
from engine.types.schedule import NewRow

State = TypeVar("State")


class SparseProcessor(Processor, Generic[State]):
    """A step whose rows each hold one `State`."""

    def __init__(self) -> None:
        self._states: dict[int, State] = {}

    @abstractmethod
    def build_state(self, new_row: NewRow) -> State | None:
        """Return what to keep for this row, or None where the step does not concern it."""

    def add(self, new_row: NewRow) -> None:
        self._states.pop(new_row.row, None)
        state = self.build_state(new_row)
        if state is not None:
            self._states[new_row.row] = state

    def remove(self, row: int) -> None:
        self._states.pop(row, None)

    @property
    def is_active(self) -> bool:
        return bool(self._states)

    def lines(self, batch: SamplingBatch) -> Iterator[tuple[int, State]]:
        """Yield (line, state) for the batch lines that this step concerns."""
        for line, row in enumerate(batch.rows_B.tolist()):
            state = self._states.get(row)
            if state is not None:
                yield line, state
