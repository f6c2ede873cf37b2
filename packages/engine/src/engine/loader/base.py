"""What every loader does: bring each tensor of a checkpoint into the model, and say how far it is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol

import torch

from engine.config.engine_config import EngineConfig
from engine.types.info import CheckpointFacts
from engine.types.progress import ProgressCallback

PHASE = "load_weights"

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class LoadableModel(Protocol):
    """A model as loaders see it; names are those of a Hugging Face checkpoint."""

    def checkpoint_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the full shape of every tensor that `load_weights` wants."""

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Fill the parameters from full tensors; raises where one is missing, unexpected or misshapen."""

    def finish_loading(self) -> None:
        """Bring the weights into their final form."""


class Loader(ABC):
    """Reads one checkpoint. Made and used by a worker, once.

    Args:
        config: resolved; `checkpoint` says where the weights are.
    """

    def __init__(self, config: EngineConfig) -> None:
        self.config = config

    @property
    def facts(self) -> CheckpointFacts:
        """The checkpoint's facts."""
        assert self.config.checkpoint is not None, "the configuration is not resolved"
        return self.config.checkpoint

    @property
    def path(self) -> Path:
        """Its folder, or its .gguf file."""
        return Path(self.facts.path)

    @property
    def dtype(self) -> torch.dtype:
        """The model's."""
        return _DTYPES[self.config.model.dtype]

    def load(self, model: LoadableModel, on_progress: ProgressCallback) -> None:
        """Fill the model's parameters and bring them into their final form.

        Args:
            model: just built; its parameters hold nothing yet.
            on_progress: told the phase `load_weights` and its fraction by bytes.

        Raises:
            CheckpointError: a tensor is missing, unexpected, misshapen or cannot be read.
        """
        on_progress(PHASE, 0.0)
        model.load_weights(self._report(model, on_progress))
        model.finish_loading()
        on_progress(PHASE, 1.0)

    @abstractmethod
    def count_bytes(self, model: LoadableModel) -> int:
        """Return how many bytes `iterate_weights` reads or makes in all."""

    @abstractmethod
    def iterate_weights(self, model: LoadableModel) -> Iterator[tuple[str, torch.Tensor, int]]:
        """Yield the name of each tensor, the whole tensor, and how many bytes were read for it."""

    def _report(
        self, model: LoadableModel, on_progress: ProgressCallback
    ) -> Iterator[tuple[str, torch.Tensor]]:
        total, done = max(self.count_bytes(model), 1), 0
        for name, tensor, num_bytes in self.iterate_weights(model):
            yield name, tensor
            done += num_bytes
            on_progress(PHASE, min(done / total, 1.0))
