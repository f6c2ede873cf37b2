"""The attention layer: heads in, heads out, with its place in the paged cache.

It holds no weights. It reads the current step from the forward context, and its cache is bound once by the
worker. Letters: T tokens of this step, H query heads, K kv heads, D head size, N blocks, S block size.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import nn

from engine.attention.backend import AttentionBackend, check_backend
from engine.config.attention_choice import AttentionNeeds
from engine.forward_context import get_forward_context
from engine.platforms.interface import kind_of
from engine.types.kv_cache_spec import FullAttentionSpec


class AttentionContext(Protocol):
    """What a layer must know of the model that it is built into."""

    @property
    def dtype(self) -> torch.dtype: ...
    @property
    def device(self) -> torch.device: ...
    @property
    def attention_backend(self) -> type[AttentionBackend]: ...
    @property
    def cache_dtype(self) -> torch.dtype: ...
    @property
    def block_size(self) -> int: ...


class Attention(nn.Module):
    """Causal self-attention of one layer over the paged cache.

    Args:
        num_heads: query heads on this rank.
        num_kv_heads: KV heads on this rank.
        prefix: the layer's name, under which its cache is planned.
        sliding_window: keys that a query sees, its own among them; 0 is all.
        soft_cap: scores become cap * tanh(score / cap); 0 is off.

    Raises:
        ConfigError: the backend cannot serve this layer.
    """

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int,
        *,
        context: AttentionContext,
        prefix: str,
        sliding_window: int = 0,
        soft_cap: float = 0.0,
    ) -> None:
        super().__init__()
        needs = AttentionNeeds(
            platform=kind_of(context.device),
            dtype=_name(context.dtype),
            head_size=head_size,
            block_size=context.block_size,
            sliding_window=sliding_window > 0,
            soft_cap=soft_cap > 0.0,
        )
        check_backend(context.attention_backend, needs, prefix)
        self.prefix = prefix
        self._heads = (num_heads, head_size)
        self._kv_heads = (num_kv_heads, head_size)
        self._block_size = context.block_size
        self._cache_dtype = context.cache_dtype
        self._key_cache: torch.Tensor | None = None
        self._value_cache: torch.Tensor | None = None
        self._backend = context.attention_backend(
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_size=head_size,
            scale=scale,
            sliding_window=sliding_window,
            soft_cap=soft_cap,
            sinks=False,
        )

    def kv_cache_spec(self) -> FullAttentionSpec:
        """Return what this layer keeps per block.

        A sliding window masks keys and frees none: its blocks stay until the request ends.
        """
        return FullAttentionSpec(
            block_size=self._block_size,
            num_kv_heads=self._kv_heads[0],
            head_size=self._kv_heads[1],
            dtype=_name(self._cache_dtype),
        )

    def bind_cache(self, key_cache_NKSD: torch.Tensor, value_cache_NKSD: torch.Tensor) -> None:
        """Use these tensors from now on; their address never changes afterwards."""
        self._key_cache = key_cache_NKSD
        self._value_cache = value_cache_NKSD

    def forward(self, query_TX: torch.Tensor, key_TX: torch.Tensor, value_TX: torch.Tensor) -> torch.Tensor:
        """Return the attention of each token over its sequence so far.

        Shapes: query [T, H*D], key and value [T, K*D] (rows may be strided) -> [T, H*D].
        Mutates: the bound cache.
        """
        assert self._key_cache is not None, "bind_cache comes first"
        assert self._value_cache is not None, "bind_cache comes first"
        out_THD = self._backend.forward(
            query_TX.view(-1, *self._heads),
            key_TX.view(-1, *self._kv_heads),
            value_TX.view(-1, *self._kv_heads),
            self._key_cache,
            self._value_cache,
            get_forward_context(),
        )
        return out_THD.flatten(-2)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
