"""Weights from a GGUF file, turned into the model's dtype while they are loaded."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from engine.config.gguf_file import GgufFile, GgufTensor, iterate_in_file_order
from engine.loader.base import LoadableModel, Loader
from engine.loader.dequantize import dequantize
from engine.loader.gguf_names import IGNORED, get_interleaved, translate_name, undo_interleaving
from engine.types.errors import CheckpointError


class GgufLoader(Loader):
    """Reads one .gguf file under the names of a Hugging Face checkpoint."""

    def count_bytes(self, model: LoadableModel) -> int:
        return self.facts.weight_bytes

    def iterate_weights(self, model: LoadableModel) -> Iterator[tuple[str, torch.Tensor, int]]:
        file = GgufFile(self.path)
        for tensor in iterate_in_file_order(file):
            if tensor.name not in IGNORED:
                yield translate_name(tensor.name), self._read(file, tensor), tensor.num_bytes

    def _read(self, file: GgufFile, tensor: GgufTensor) -> torch.Tensor:
        data = torch.from_numpy(file.get_tensor_bytes(tensor))
        kind = get_interleaved(tensor.name) if file.metadata["general.architecture"] == "llama" else None
        if kind is not None:
            config = self.facts.config
            num_heads = config["num_attention_heads" if kind == "q" else "num_key_value_heads"]
            num_rows = tensor.shape[0]
            if num_rows % (2 * num_heads):
                raise CheckpointError(
                    f"{file.path} gives tensor {tensor.name!r} {num_rows} rows, which {num_heads} heads do "
                    "not share "
                    "evenly."
                )
            # Blocks never span rows, so rows are moved while they are still packed.
            data = undo_interleaving(data.view(num_rows, -1), num_heads).flatten()
        return dequantize(data, tensor.type_name, tensor.shape, self.dtype)
