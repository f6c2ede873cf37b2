"""An attention backend: declared capabilities, which a layer checks, and one call.

Letters: T tokens of this step, H query heads, K kv heads, D head size, N blocks, S block size.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch

from engine.config.attention_choice import AttentionNeeds, find_refusal
from engine.forward_context import AttentionMetadata
from engine.types.attention import AttentionCapabilities
from engine.types.errors import ConfigError


class AttentionBackend(ABC):
    """The attention of one layer. Owns nothing but its numbers; the cache belongs to the worker."""

    capabilities: ClassVar[AttentionCapabilities]
    """The same as its option's YAML states."""

    def __init__(
        self,
        *,
        num_heads: int,
        num_kv_heads: int,
        head_size: int,
        scale: float,
        sliding_window: int,
        soft_cap: float,
        sinks: bool,
    ) -> None:
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads
        self.head_size = head_size
        self.scale = scale
        self.sliding_window = sliding_window
        """Keys that a query sees, its own among them; 0 is all."""
        self.soft_cap = soft_cap
        """0 is none."""
        self.sinks = sinks

    @abstractmethod
    def forward(
        self,
        query_THD: torch.Tensor,
        key_TKD: torch.Tensor,
        value_TKD: torch.Tensor,
        key_cache_NKSD: torch.Tensor,
        value_cache_NKSD: torch.Tensor,
        metadata: AttentionMetadata,
        sinks_H: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Store this step's keys and values, and return each query's attention over its sequence, [T, H, D].

        Mutates: the caches, at the slots that `metadata` names.
        """


def check_backend(backend: type[AttentionBackend], needs: AttentionNeeds, layer_name: str) -> None:
    """Return if the backend can serve a layer.

    Raises:
        ConfigError: it cannot, and why.
    """
    reason = find_refusal(backend.capabilities, needs)
    if reason is not None:
        raise ConfigError(
            f"attention: backend {backend.__name__} cannot serve layer {layer_name!r}: it {reason}. "
            "Set attention=auto or choose another backend.",
            key="attention",
        )
