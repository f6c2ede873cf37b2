"""A language model as the worker sees it: forward, logits, loading, and its attention layers by name.

Knows nothing of a family but its shape and its names.
Letters: T tokens, E hidden size, R lines, V vocabulary.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import torch
from torch import nn

from engine.attention.layer import Attention
from engine.layers.checkpoint import FusedNames, build_slots, load_slots
from engine.layers.context import ModelContext
from engine.layers.decoder import DecoderModel, DecoderShape
from engine.layers.embedding import ParallelLMHead
from engine.layers.linear import Linear
from engine.layers.logits import LogitsProcessor


class CausalLM(nn.Module):
    """A decoder with an output head. Life: construct, `load_weights`, `finish_loading`, then forward passes.

    Args:
        config: the checkpoint's configuration, under the keys of config.json.
    """

    model_class: ClassVar[type[DecoderModel]] = DecoderModel
    fused_names: ClassVar[FusedNames] = {
        "qkv_proj": {"q": "q_proj", "k": "k_proj", "v": "v_proj"},
        "gate_up_proj": {"gate": "gate_proj", "up": "up_proj"},
    }
    """The weight map: our fused layers and what checkpoints call their parts."""
    ignored_endings: ClassVar[tuple[str, ...]] = (".rotary_emb.inv_freq",)
    """Endings of tensors that some checkpoints hold and nobody needs."""

    def __init__(self, config: Mapping[str, Any], context: ModelContext) -> None:
        super().__init__()
        shape = self.read_shape(config)
        self.shape = shape
        self.model = self.model_class(shape, context=context, prefix="model")
        self.lm_head = ParallelLMHead(
            shape.vocab_size,
            shape.hidden_size,
            tied_to=self.model.embed_tokens if shape.tie_word_embeddings else None,
            context=context,
            prefix="lm_head",
        )
        self._logits = LogitsProcessor(shape.vocab_size)

    @classmethod
    @abstractmethod
    def read_shape(cls, config: Mapping[str, Any]) -> DecoderShape:
        """Return what a checkpoint's configuration means in this family.

        Raises:
            CheckpointError: the configuration cannot be served.
        """

    def forward(self, input_ids_T: torch.Tensor, positions_T: torch.Tensor) -> torch.Tensor:
        """Return the final hidden states, [T, E]; runs within a forward context."""
        return self.model(input_ids_T, positions_T)  # type: ignore[no-any-return]

    def compute_logits(self, hidden_RE: torch.Tensor) -> torch.Tensor:
        """Return float32 logits, [R, V]."""
        return self._logits.compute(self.lm_head, hidden_RE)

    def attention_layers(self) -> dict[str, Attention]:
        """Return the layers that need a cache, by name, in model order."""
        return {layer.prefix: layer for layer in self.modules() if isinstance(layer, Attention)}

    def checkpoint_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the full shape of every tensor that `load_weights` wants, by checkpoint name.

        The same on every rank, and only before `finish_loading`.
        """
        return {name: slot.shape for name, slot in build_slots(self, self.fused_names).items()}

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Fill this rank's parameters from full tensors, and return the names of the parameters.

        Raises:
            CheckpointError: a tensor is missing, unexpected, given twice or of another shape.
        """
        # A tied head has no tensor of its own; some checkpoints store it all the same.
        tied = ("lm_head.weight",) if self.shape.tie_word_embeddings else ()
        with torch.no_grad():
            return load_slots(build_slots(self, self.fused_names), weights, self.ignored_endings + tied)

    def finish_loading(self) -> None:
        """Bring every linear layer's weight into its final form; nothing can be loaded afterwards."""
        for module in self.modules():
            if isinstance(module, Linear):
                module.finish()
