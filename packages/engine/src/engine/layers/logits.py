"""From hidden states to logits of the whole vocabulary. Letters: R lines, E hidden size, V vocabulary."""

from __future__ import annotations

import torch

from engine.distributed.groups import get_tp_group
from engine.layers.embedding import ParallelLMHead


class LogitsProcessor:
    """Computes float32 logits, the same on every rank.

    Args:
        scale: factor on the logits.
        soft_cap: logits become cap * tanh(logits / cap); 0 is off.
    """

    def __init__(self, vocab_size: int, *, scale: float = 1.0, soft_cap: float = 0.0) -> None:
        self._group = get_tp_group()
        self._vocab_size = vocab_size
        self._scale = scale
        self._soft_cap = soft_cap

    def compute(self, head: ParallelLMHead, hidden_RE: torch.Tensor) -> torch.Tensor:
        """Return logits, [R, V] float32, contiguous, in memory of their own."""
        logits_RV: torch.Tensor = head(hidden_RE)
        if self._group.world_size > 1:
            # Ranks hold equally many rows; what lies past the vocabulary is padding.
            logits_RV = self._group.all_gather(logits_RV)[:, : self._vocab_size].contiguous()
        logits_RV = logits_RV.float()
        if self._scale != 1.0:
            logits_RV *= self._scale
        if self._soft_cap > 0.0:
            logits_RV = self._soft_cap * torch.tanh(logits_RV / self._soft_cap)
        return logits_RV
