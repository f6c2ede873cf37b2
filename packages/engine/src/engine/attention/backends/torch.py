"""Attention in plain torch, on any device: the reference, one request at a time and slow."""

from __future__ import annotations

import torch
from kernels.reference.attention import paged_attention
from kernels.reference.kv_cache import write_kv_cache

from engine.attention.backend import AttentionBackend
from engine.forward_context import AttentionMetadata
from engine.types.attention import AttentionCapabilities


class TorchAttention(AttentionBackend):
    """Attention over the paged cache by the reference ops."""

    capabilities = AttentionCapabilities(
        platforms=["cpu", "cuda", "rocm"],
        dtypes=["float32", "bfloat16", "float16"],
        sliding_window=True,
        soft_cap=True,
        sinks=True,
        priority=0,
    )

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
        write_kv_cache(key_TKD, value_TKD, key_cache_NKSD, value_cache_NKSD, metadata.slot_mapping_T)
        return paged_attention(
            query_THD,
            key_cache_NKSD,
            value_cache_NKSD,
            metadata.block_table_BM,
            metadata.query_start_loc_B1,
            metadata.seq_lens_B,
            self.scale,
            sliding_window=self.sliding_window,
            soft_cap=self.soft_cap,
            sinks_H=sinks_H,
            max_query_len=metadata.max_query_len,
        )
