"""The public ops: one typed function each, calling the op registered with torch.

Knows signatures and shapes; which implementation runs is `dispatch`'s business.

Letters: T tokens, H query heads, K kv heads, D head size, B requests or rows, N blocks, S block size, M table
width, P positions, R rotary dim, V vocabulary, E hidden size, F intermediate size, k most likely tokens.
"""

from __future__ import annotations

import torch

from kernels import dispatch

dispatch.register()
_ops = torch.ops.pagoda


def rms_norm(x_TE: torch.Tensor, weight_E: torch.Tensor, eps: float) -> torch.Tensor:
    """Return x / rms(x) * weight over the last dimension, accumulated in float32."""
    dispatch.prepare(x_TE)
    out: torch.Tensor = _ops.rms_norm(x_TE, weight_E, eps)
    return out


def fused_add_rms_norm(
    x_TE: torch.Tensor, residual_TE: torch.Tensor, weight_E: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (rms_norm(x + residual), x + residual), both new tensors."""
    dispatch.prepare(x_TE)
    out: tuple[torch.Tensor, torch.Tensor] = _ops.fused_add_rms_norm(x_TE, residual_TE, weight_E, eps)
    return out


def silu_and_mul(x_T2F: torch.Tensor) -> torch.Tensor:
    """Return silu(gate) * up of x = [gate | up]."""
    dispatch.prepare(x_T2F)
    out: torch.Tensor = _ops.silu_and_mul(x_T2F)
    return out


def gelu_and_mul(x_T2F: torch.Tensor, approximate: str = "none") -> torch.Tensor:
    """Return gelu(gate) * up of x = [gate | up]; `approximate` is "none" or "tanh"."""
    dispatch.prepare(x_T2F)
    out: torch.Tensor = _ops.gelu_and_mul(x_T2F, approximate)
    return out


def rotary_embedding(
    positions_T: torch.Tensor,
    query_TX: torch.Tensor,
    key_TX: torch.Tensor,
    cos_sin_cache_PR: torch.Tensor,
    head_size: int,
    is_neox: bool,
) -> None:
    """Rotate the heads of query and key by their positions.

    Shapes: positions int64 [T]; query [T, H*D], key [T, K*D], rows may be strided (slices of one qkv tensor);
        a cache line holds R/2 cosines, then R/2 sines; R <= D.
    Mutates: query, key.
    Raises: ValueError for a position outside the cache or shapes that do not fit.
    """
    dispatch.prepare(query_TX)
    _ops.rotary_embedding(positions_T, query_TX, key_TX, cos_sin_cache_PR, head_size, is_neox)


def write_kv_cache(
    key_TKD: torch.Tensor,
    value_TKD: torch.Tensor,
    key_cache_NKSD: torch.Tensor,
    value_cache_NKSD: torch.Tensor,
    slot_mapping_T: torch.Tensor,
) -> None:
    """Copy each token's key and value into slot = block * S + offset; negative slots are skipped.

    Mutates: key_cache, value_cache.
    Raises: ValueError for a slot past the end of the cache or shapes that do not fit.
    """
    dispatch.prepare(key_TKD)
    _ops.write_kv_cache(key_TKD, value_TKD, key_cache_NKSD, value_cache_NKSD, slot_mapping_T)


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
    """Return attention of each query token over its request's keys; one call serves any mix of requests.

    Args:
        block_table_BM: int32; the blocks of each request, in order.
        query_start_loc_B1: int32 [B + 1]; request b owns query tokens [b], ..., [b + 1] - 1; none is fine.
        seq_lens_B: int32; keys per request, this step's tokens included (they are in the cache already).
        sliding_window: keys a query sees, itself included; 0 is off.
        soft_cap: scores become cap * tanh(score / cap); 0 is off.
        sinks_H: a logit per head that takes part in the softmax and has no value.
        max_query_len: the largest number of query tokens of a request, if known; 0 is unknown.

    Returns: [T, H, D]; tokens of no request are zeros.
    Raises: ValueError where lengths, tables and cache do not belong together.
    """
    dispatch.prepare(query_THD)
    out: torch.Tensor = _ops.paged_attention(
        query_THD,
        key_cache_NKSD,
        value_cache_NKSD,
        block_table_BM,
        query_start_loc_B1,
        seq_lens_B,
        scale,
        sliding_window=sliding_window,
        soft_cap=soft_cap,
        sinks=sinks_H,
        causal=causal,
        max_query_len=max_query_len,
    )
    return out


def nonfinite_rows(logits_BV: torch.Tensor) -> torch.Tensor:
    """Return, per row, whether it has a NaN or +inf, or nothing above -inf to choose from."""
    dispatch.prepare(logits_BV)
    out: torch.Tensor = _ops.nonfinite_rows(logits_BV)
    return out


def apply_penalties(
    logits_BV: torch.Tensor,
    prompt_token_mask_BV: torch.Tensor,
    output_counts_BV: torch.Tensor,
    repetition_B: torch.Tensor,
    presence_B: torch.Tensor,
    frequency_B: torch.Tensor,
) -> None:
    """Apply repetition (over prompt and output), frequency and presence (over output) penalties.

    Shapes: prompt_token_mask bool or uint8, output_counts int32, penalties float32.
    Mutates: logits.
    """
    dispatch.prepare(logits_BV)
    _ops.apply_penalties(
        logits_BV, prompt_token_mask_BV, output_counts_BV, repetition_B, presence_B, frequency_B
    )


def apply_min_p(logits_BV: torch.Tensor, min_p_B: torch.Tensor) -> None:
    """Forbid tokens whose probability is below min_p times the largest; 0 is off.

    Mutates: logits.
    """
    dispatch.prepare(logits_BV)
    _ops.apply_min_p(logits_BV, min_p_B)


def apply_top_k_top_p(
    logits_BV: torch.Tensor, top_k_B: torch.Tensor | None, top_p_B: torch.Tensor | None
) -> None:
    """Keep a token if fewer than top_k are likelier and those likelier hold less than top_p of the mass.

    Equal logits stay or go together; the likeliest always stays. top_k (int32) = V or 0, top_p = 1 are off.

    Mutates: logits.
    """
    dispatch.prepare(logits_BV)
    _ops.apply_top_k_top_p(logits_BV, top_k_B, top_p_B)


def gumbel_sample(logits_BV: torch.Tensor, seeds_B: torch.Tensor, positions_B: torch.Tensor) -> torch.Tensor:
    """Return one token per row (int64), drawn from softmax(logits).

    A row's token depends on its logits, seed and position alone: the same in any batch and on any device.
    """
    dispatch.prepare(logits_BV)
    out: torch.Tensor = _ops.gumbel_sample(logits_BV, seeds_B, positions_B)
    return out


def gather_logprobs(
    logits_BV: torch.Tensor, token_ids_B: torch.Tensor, num_top: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return (logprob_B, rank_B, top_ids_Bk, top_logprobs_Bk); ranks count from 1, ids are int64.

    Raises: ValueError for a token id or `num_top` outside the vocabulary.
    """
    dispatch.prepare(logits_BV)
    out: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor] = _ops.gather_logprobs(
        logits_BV, token_ids_B, num_top
    )
    return out
