"""Attention on the host through the kernel package: compiled ops where there is a C++ compiler."""

from __future__ import annotations

import kernels
import torch

from engine.attention.backend import AttentionBackend
from engine.forward_context import AttentionMetadata
from engine.types.attention import AttentionCapabilities


class CpuAttention(AttentionBackend):
    """Attention over the paged cache on the CPU."""

    capabilities = AttentionCapabilities(
        platforms=["cpu"],
        dtypes=["float32", "bfloat16", "float16"],
        sliding_window=True,
        soft_cap=True,
        sinks=True,
        priority=100,
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
        dtype = query_THD.dtype
        if dtype != key_cache_NKSD.dtype:
            # The compiled op computes in the cache's dtype.
            query_THD, key_TKD, value_TKD = (
                x.to(key_cache_NKSD.dtype) for x in (query_THD, key_TKD, value_TKD)
            )
        kernels.write_kv_cache(key_TKD, value_TKD, key_cache_NKSD, value_cache_NKSD, metadata.slot_mapping_T)
        out_THD = kernels.paged_attention(
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
        return out_THD if out_THD.dtype == dtype else out_THD.to(dtype)
