"""Rotary position embedding in plain torch, in place.

Letters: T tokens, H query heads, K kv heads, D head size, P positions, R rotary dim (R <= D; the rest of a
head passes through). The cache line of a position holds R/2 cosines, then R/2 sines.
"""

from __future__ import annotations

import torch


def rotary_embedding(
    positions_T: torch.Tensor,
    query_TX: torch.Tensor,
    key_TX: torch.Tensor,
    cos_sin_cache_PR: torch.Tensor,
    head_size: int,
    is_neox: bool,
) -> None:
    """Rotate every head of query and key; computed in float32, rounded once.

    Shapes: query [T, H*D], key [T, K*D]; rows may be strided.
    Mutates: query, key.
    Raises: ValueError for a position outside the cache or a head size that does not fit.
    """
    num_positions, rotary_dim = cos_sin_cache_PR.shape
    check_rotary(query_TX, key_TX, positions_T, rotary_dim, head_size)
    if positions_T.numel() and (int(positions_T.min()) < 0 or int(positions_T.max()) >= num_positions):
        raise ValueError(f"positions: must lie in [0, {num_positions})")
    cos_T1R, sin_T1R = cos_sin_cache_PR[positions_T].float().unsqueeze(1).chunk(2, dim=-1)
    for x_TX in (query_TX, key_TX):
        heads_TXD = x_TX.view(x_TX.shape[0], x_TX.shape[1] // head_size, head_size)
        rotated = heads_TXD[..., :rotary_dim].float()
        if is_neox:
            first, second = rotated.chunk(2, dim=-1)
        else:
            first, second = rotated[..., 0::2], rotated[..., 1::2]
        new_first = first * cos_T1R - second * sin_T1R
        new_second = second * cos_T1R + first * sin_T1R
        if is_neox:
            result = torch.cat([new_first, new_second], dim=-1)
        else:
            result = torch.stack([new_first, new_second], dim=-1).flatten(-2)
        heads_TXD[..., :rotary_dim] = result.to(x_TX.dtype)


def check_rotary(
    query_TX: torch.Tensor, key_TX: torch.Tensor, positions_T: torch.Tensor, rotary_dim: int, head_size: int
) -> None:
    """Raise ValueError where the shapes do not belong together."""
    if rotary_dim % 2 or not 0 < rotary_dim <= head_size:
        raise ValueError(
            f"cos_sin_cache: rotary dim {rotary_dim} must be even and at most head_size={head_size}"
        )
    for name, x_TX in (("query", query_TX), ("key", key_TX)):
        if x_TX.dim() != 2 or x_TX.shape[0] != positions_T.shape[0] or x_TX.shape[1] % head_size:
            raise ValueError(
                f"{name}: shape {tuple(x_TX.shape)} must be "
                f"[{positions_T.shape[0]}, a multiple of {head_size}]"
            )
