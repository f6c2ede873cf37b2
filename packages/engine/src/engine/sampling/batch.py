"""What the sampler gets besides logits: which rows they belong to and what those rows hold so far.

Letters: B sampled rows of this step, R rows of the request table, L most tokens of a row, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

IntArray = npt.NDArray[np.int64]


@dataclass(slots=True)
class SamplingBatch:
    """The rows that sample in this step; made by the model runner.

    Line b of the logits belongs to request-table row `rows_B[b]`.
    """

    rows_B: IntArray
    num_tokens_B: IntArray
    """Known tokens of each row, which is also the position of the token to be sampled."""
    num_output_tokens_B: IntArray
    """Tokens generated so far."""
    token_ids_RL: npt.NDArray[np.int32]
    """The request table's tokens; read only."""
    device: torch.device


@dataclass(slots=True)
class SamplerOutput:
    """Result of one sampling step; tensors stay on the device until the model runner copies them once."""

    token_ids_B: torch.Tensor
    """int64."""
    failed_B: torch.Tensor
    """bool: the row's logits were not finite, so its token means nothing."""
    raw_logits: torch.Tensor | None
    """Logits before any step, of the lines in `logprob_lines` only; None where no row asked for logprobs."""
    logprob_lines: list[int]
    """Lines of the batch whose rows asked for logprobs."""
