"""Writing new keys and values into the paged cache, in plain torch.

Letters: T tokens, K kv heads, D head size, N blocks, S block size. A slot is block * S + offset; a
negative slot is padding.
"""

from __future__ import annotations

import torch


def write_kv_cache(
    key_TKD: torch.Tensor,
    value_TKD: torch.Tensor,
    key_cache_NKSD: torch.Tensor,
    value_cache_NKSD: torch.Tensor,
    slot_mapping_T: torch.Tensor,
) -> None:
    """Copy each token's key and value into its slot.

    Mutates: key_cache, value_cache.
    Raises: ValueError for shapes that do not fit or a slot past the end of the cache.
    """
    num_blocks, num_kv_heads, block_size, head_size = key_cache_NKSD.shape
    num_tokens = slot_mapping_T.shape[0]
    for name, x_TKD in (("key", key_TKD), ("value", value_TKD)):
        if tuple(x_TKD.shape) != (num_tokens, num_kv_heads, head_size):
            raise ValueError(
                f"{name}: shape {tuple(x_TKD.shape)} must be {(num_tokens, num_kv_heads, head_size)}, "
                "as the cache and slot_mapping say"
            )
    if value_cache_NKSD.shape != key_cache_NKSD.shape:
        raise ValueError(f"value_cache: shape {tuple(value_cache_NKSD.shape)} differs from key_cache")
    if num_tokens and int(slot_mapping_T.max()) >= num_blocks * block_size:
        raise ValueError(f"slot_mapping: slots must be below {num_blocks * block_size}")
    is_real_T = slot_mapping_T >= 0
    slots = slot_mapping_T[is_real_T]
    blocks, offsets = slots // block_size, slots % block_size
    key_cache_NKSD[blocks, :, offsets] = key_TKD[is_real_T].to(key_cache_NKSD.dtype)
    value_cache_NKSD[blocks, :, offsets] = value_TKD[is_real_T].to(value_cache_NKSD.dtype)
