"""What a worker knows of each running request, one row per request, as host columns.

Letters: R rows, L most tokens of a request. The scheduler sends differences; this table carries the rest
forward, so that a steady decode step costs no message per request.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from engine.types.sampling_params import SamplingParams
from engine.types.schedule import NewRow


class RequestTable:
    """Columns over rows; a free row's values mean nothing."""

    def __init__(self, num_rows: int, max_model_len: int) -> None:
        # Not zeroed: pages of rows and lengths that no request reaches are never touched.
        self.token_ids_RL = np.empty((num_rows, max_model_len), np.int32)
        self.num_tokens_R = np.zeros(num_rows, np.int64)
        self.num_prompt_tokens_R = np.zeros(num_rows, np.int64)
        self.num_computed_R = np.zeros(num_rows, np.int64)
        self.params: list[SamplingParams | None] = [None] * num_rows
        self.prompt_logprob_rows: set[int] = set()
        """Rows that asked for prompt logprobs and have not passed their prompt yet."""

    def add(self, new_row: NewRow) -> None:
        """Fill a row."""
        row, num_tokens = new_row.row, len(new_row.token_ids)
        self.token_ids_RL[row, :num_tokens] = new_row.token_ids
        self.num_tokens_R[row] = num_tokens
        self.num_prompt_tokens_R[row] = new_row.num_prompt_tokens
        self.num_computed_R[row] = new_row.num_computed_tokens
        self.params[row] = new_row.params
        self.prompt_logprob_rows.discard(row)
        # A row resumed with generated tokens has reported its prompt before.
        if new_row.params.prompt_logprobs is not None and num_tokens == new_row.num_prompt_tokens:
            self.prompt_logprob_rows.add(row)

    def remove(self, row: int) -> None:
        """Forget a row."""
        self.params[row] = None
        self.prompt_logprob_rows.discard(row)

    def append(self, rows: npt.NDArray[np.int64], token_ids: npt.NDArray[np.int64]) -> None:
        """Append one token to each of these rows (no row twice)."""
        num_tokens = self.num_tokens_R[rows]
        # A row at the model's limit ends with this token; there is no place for it and no need of one.
        fits = num_tokens < self.token_ids_RL.shape[1]
        self.token_ids_RL[rows[fits], num_tokens[fits]] = token_ids[fits]
        self.num_tokens_R[rows] += 1
