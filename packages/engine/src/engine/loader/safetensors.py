"""Weights from safetensors files, one or several, read through a memory map in the order of their bytes."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from safetensors import SafetensorError, safe_open

from engine.config.safetensors_file import read_header
from engine.loader.base import LoadableModel, Loader
from engine.types.errors import CheckpointError


class SafetensorsLoader(Loader):
    """Reads the files that the checkpoint's facts name."""

    def count_bytes(self, model: LoadableModel) -> int:
        return self.facts.weight_bytes

    def iterate_weights(self, model: LoadableModel) -> Iterator[tuple[str, torch.Tensor, int]]:
        for file_name in self.facts.weight_files:
            path = self.path / file_name
            # Checked again: facts may have been read in another process, and files can change.
            header = read_header(path)
            try:
                with safe_open(path, framework="pt", device="cpu") as file:
                    for stored in header:
                        yield stored.name, file.get_tensor(stored.name), stored.num_bytes
            except (SafetensorError, OSError) as error:
                raise CheckpointError(f"{path} cannot be read: {error}.") from error
