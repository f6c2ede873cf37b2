"""The step that is running now, for the layers that need more than their input: the second sanctioned global.

One forward runs at a time in a process (on one thread); the runner brackets it with `set_forward_context`.
Letters: T tokens of this step, B requests, M most blocks of a request.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from types import TracebackType

import torch


@dataclass(slots=True)
class AttentionMetadata:
    """Where this step's tokens stand in their sequences and in the cache; filled by the worker's runner."""

    query_start_loc_B1: torch.Tensor
    """int32: first token of each request, and the number of tokens at the end."""
    seq_lens_B: torch.Tensor
    """int32: tokens of each request after this step (computed before, plus this step's)."""
    block_table_BM: torch.Tensor
    """int32: block ids of each request in order; entries past its length mean nothing."""
    slot_mapping_T: torch.Tensor
    """int64: where each token's key and value go (block * block size + offset); negative is padding."""
    num_requests: int
    num_tokens: int
    max_query_len: int
    max_seq_len: int


class _Current(threading.local):
    metadata: AttentionMetadata | None = None


_current = _Current()


class set_forward_context:
    """Make `metadata` the current step within the block.

    A class with a verb's name, because a generator-based context manager costs several times more.
    """

    __slots__ = ("_metadata", "_previous")

    def __init__(self, metadata: AttentionMetadata) -> None:
        self._metadata = metadata
        self._previous: AttentionMetadata | None = None

    def __enter__(self) -> None:
        self._previous = _current.metadata
        _current.metadata = self._metadata

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        _current.metadata = self._previous


def get_forward_context() -> AttentionMetadata:
    """Return the current step's metadata."""
    metadata = _current.metadata
    assert metadata is not None, "a model runs within set_forward_context"
    return metadata
