"""Which blocks hold each row's KV, in order, as a host array. Letters: R rows, M most blocks of a row."""

from __future__ import annotations

import numpy as np


class BlockTable:
    """Block ids per row; entries past a row's count are stale and never read."""

    def __init__(self, num_rows: int, max_blocks: int) -> None:
        self.block_ids_RM = np.zeros((num_rows, max_blocks), np.int32)
        self._num_blocks_R = np.zeros(num_rows, np.int64)

    def set(self, row: int, block_ids: list[int]) -> None:
        """Give a row its first blocks."""
        self._num_blocks_R[row] = 0
        self.append(row, block_ids)

    def append(self, row: int, block_ids: list[int]) -> None:
        """Append blocks to a row."""
        start = self._num_blocks_R[row]
        self.block_ids_RM[row, start : start + len(block_ids)] = block_ids
        self._num_blocks_R[row] = start + len(block_ids)
