"""The tensors of one forward pass and the static buffers they live in.

Letters: T tokens of this step, B requests of this step, M most blocks of a request, S lines that sample.
The worker's model runner fills these; models and attention only read.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from engine.forward_context import AttentionMetadata


@dataclass(slots=True)
class InputBatch:
    """One step's input."""

    num_tokens: int
    input_ids_T: torch.Tensor
    """int64, filled from the request table."""
    positions_T: torch.Tensor
    """int64."""
    attention: AttentionMetadata
    logits_indices_S: torch.Tensor
    """int64: for each row that samples, its last token's index in T."""
    prompt_indices: torch.Tensor | None = None
    """int64: tokens whose hidden state is wanted for prompt logprobs; None where no row asked."""


class StaticBuffer:
    """A device tensor of fixed address with a host twin that numpy writes to.

    On the CPU both are one memory; elsewhere the twin is pinned and `upload` copies without blocking.
    """

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
        is_host = device.type == "cpu"
        self._host = torch.zeros(shape, dtype=dtype, pin_memory=not is_host)
        self._device = self._host if is_host else torch.zeros(shape, dtype=dtype, device=device)
        self.numpy: npt.NDArray[np.generic] = self._host.numpy()

    def upload(self, num: int) -> torch.Tensor:
        """Return the first `num` entries on the device, as they stand in the host twin now."""
        view = self._device[:num]
        if self._device is not self._host:
            # Stream order protects this copy: the forward that reads it is enqueued behind it, and the host
            # twin is rewritten only after the step's result was read.
            view.copy_(self._host[:num], non_blocking=True)
        return view


class InputBuffers:
    """Every tensor a step's input needs, allocated once for the largest step."""

    def __init__(self, max_num_tokens: int, max_num_seqs: int, max_blocks: int, device: torch.device) -> None:
        self.input_ids = StaticBuffer((max_num_tokens,), torch.int64, device)
        self.positions = StaticBuffer((max_num_tokens,), torch.int64, device)
        self.slot_mapping = StaticBuffer((max_num_tokens,), torch.int64, device)
        self.query_start_loc = StaticBuffer((max_num_seqs + 1,), torch.int32, device)
        self.seq_lens = StaticBuffer((max_num_seqs,), torch.int32, device)
        self.block_table = StaticBuffer((max_num_seqs, max_blocks), torch.int32, device)
        self.logits_indices = StaticBuffer((max_num_seqs,), torch.int64, device)
