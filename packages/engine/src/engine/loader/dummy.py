"""Random weights, for a configuration without weights: the same for a seed, however the model is split."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator

import torch

from engine.loader.base import LoadableModel, Loader


class DummyLoader(Loader):
    """Makes each tensor from `model.seed` and its name alone.

    Matrices are uniform with the variance that keeps activations at their size, vectors of norms lie around
    one and biases around zero, so that logits are finite and no two rows of a table are alike.
    """

    def count_bytes(self, model: LoadableModel) -> int:
        return self.dtype.itemsize * sum(map(math.prod, model.checkpoint_shapes().values()))

    def iterate_weights(self, model: LoadableModel) -> Iterator[tuple[str, torch.Tensor, int]]:
        for name, shape in model.checkpoint_shapes().items():
            tensor = self._make(name, shape)
            yield name, tensor, tensor.numel() * self.dtype.itemsize

    def _make(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        digest = hashlib.sha256(f"{self.config.model.seed}:{name}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
        # Drawn in the model's own dtype: half the time and memory of drawing in float32 first.
        tensor = torch.empty(shape, dtype=self.dtype)
        if len(shape) > 1:
            bound = math.sqrt(3.0 / shape[-1])
            return tensor.uniform_(-bound, bound, generator=generator)
        tensor.uniform_(-0.1, 0.1, generator=generator)
        return tensor if name.endswith("bias") else tensor.add_(1.0)
