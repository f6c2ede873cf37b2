"""Attention over a paged cache in plain torch, one request at a time.

Letters: T query tokens, H query heads, K kv heads, D head size, B requests, M table width, N blocks, S block
size, Q query tokens of one request, L keys of one request.
"""

from __future__ import annotations

import torch


def paged_attention(
    query_THD: torch.Tensor,
    key_cache_NKSD: torch.Tensor,
    value_cache_NKSD: torch.Tensor,
    block_table_BM: torch.Tensor,
    query_start_loc_B1: torch.Tensor,
    seq_lens_B: torch.Tensor,
    scale: float,
    *,
    sliding_window: int = 0,
    soft_cap: float = 0.0,
    sinks_H: torch.Tensor | None = None,
    causal: bool = True,
    max_query_len: int = 0,
) -> torch.Tensor:
    """Return softmax(scale * q k^T) v per request; the last query token is the last key.

    Tokens that belong to no request (padding past the last one) come back as zeros.

    Raises: ValueError where lengths, tables and cache do not belong together.
    """
    del max_query_len  # a hint for launches; the truth needs none
    starts = query_start_loc_B1.tolist()
    lens = seq_lens_B.tolist()
    _check(query_THD, key_cache_NKSD, value_cache_NKSD, block_table_BM, starts, lens)
    num_kv_heads, block_size = key_cache_NKSD.shape[1], key_cache_NKSD.shape[2]
    group_size = query_THD.shape[1] // num_kv_heads
    out_THD = torch.zeros_like(query_THD, memory_format=torch.contiguous_format)
    for request, seq_len in enumerate(lens):
        start, end = starts[request], starts[request + 1]
        if start == end:
            continue
        # Blocks wholly before the window may have been given back; their entries mean nothing any more.
        first_key = max(0, seq_len - (end - start) - sliding_window + 1) if sliding_window > 0 else 0
        first_block = first_key // block_size
        blocks = block_table_BM[request, first_block : -(-seq_len // block_size)].long()
        num_keys = seq_len - first_block * block_size
        if int(blocks.min()) < 0 or int(blocks.max()) >= key_cache_NKSD.shape[0]:
            raise ValueError(
                f"block_table: row {request} names a block outside [0, {key_cache_NKSD.shape[0]})"
            )
        # [blocks, K, S, D] -> [L, H, D]
        keys_LHD, values_LHD = (
            cache[blocks]
            .transpose(1, 2)
            .flatten(0, 1)[:num_keys]
            .float()
            .repeat_interleave(group_size, dim=1)
            for cache in (key_cache_NKSD, value_cache_NKSD)
        )
        scores_HQL = torch.einsum("qhd,lhd->hql", query_THD[start:end].float(), keys_LHD) * scale
        if soft_cap > 0.0:
            scores_HQL = soft_cap * torch.tanh(scores_HQL / soft_cap)
        mask_QL = _visible(end - start, num_keys, sliding_window, causal, query_THD.device)
        scores_HQL = scores_HQL.masked_fill(~mask_QL, float("-inf"))
        if sinks_H is not None:
            sink_HQ1 = sinks_H.float()[:, None, None].expand(-1, end - start, 1)
            scores_HQL = torch.cat([scores_HQL, sink_HQ1], dim=-1)
        weights_HQL = torch.softmax(scores_HQL, dim=-1)[..., :num_keys]
        out_THD[start:end] = torch.einsum("hql,lhd->qhd", weights_HQL, values_LHD).to(out_THD.dtype)
    return out_THD


def _visible(
    num_queries: int, num_keys: int, sliding_window: int, causal: bool, device: torch.device
) -> torch.Tensor:
    """Return which keys each query sees; a window of w counts the token itself and w - 1 before it."""
    query_Q1 = torch.arange(num_keys - num_queries, num_keys, device=device)[:, None]
    key_L = torch.arange(num_keys, device=device)[None, :]
    visible_QL = torch.ones(num_queries, num_keys, dtype=torch.bool, device=device)
    if causal:
        visible_QL &= key_L <= query_Q1
    if sliding_window > 0:
        visible_QL &= key_L > query_Q1 - sliding_window
    return visible_QL


def _check(
    query_THD: torch.Tensor,
    key_cache_NKSD: torch.Tensor,
    value_cache_NKSD: torch.Tensor,
    block_table_BM: torch.Tensor,
    starts: list[int],
    lens: list[int],
) -> None:
    num_tokens, num_heads, head_size = query_THD.shape
    _, num_kv_heads, block_size, cache_head_size = key_cache_NKSD.shape
    if value_cache_NKSD.shape != key_cache_NKSD.shape:
        raise ValueError(f"value_cache: shape {tuple(value_cache_NKSD.shape)} differs from key_cache")
    if head_size != cache_head_size or num_heads % num_kv_heads:
        raise ValueError(
            f"query: {num_heads} heads of {head_size} do not fit a cache of {num_kv_heads} heads "
            f"of {cache_head_size}"
        )
    if len(starts) != len(lens) + 1 or block_table_BM.shape[0] < len(lens):
        raise ValueError(
            f"seq_lens: {len(lens)} requests need {len(lens) + 1} query_start_loc entries "
            f"(got {len(starts)}) and as many block_table rows (got {block_table_BM.shape[0]})"
        )
    previous = 0
    for request, seq_len in enumerate(lens):
        num_queries = starts[request + 1] - starts[request]
        if starts[request] < previous or num_queries < 0 or starts[request + 1] > num_tokens:
            raise ValueError(f"query_start_loc: must rise from 0 to at most {num_tokens} tokens")
        previous = starts[request]
        if num_queries and not num_queries <= seq_len <= block_table_BM.shape[1] * block_size:
            raise ValueError(
                f"seq_lens: {seq_len} of request {request} must be at least its {num_queries} query tokens "
                f"and at most the {block_table_BM.shape[1]} blocks of its table row"
            )
