"""GGUF's block formats to floating point, vectorised over blocks.

A tensor is a run of blocks: a scale or two, then small integers packed into bytes. Work goes in slices that
stay in a core's cache, for the steps between are many times the size of the result. Knows no names and no
files.

Source: ggml's ggml-common.h (layout of the blocks) and ggml-quants.c (meaning). Letters: N blocks.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

_SLICE_ELEMENTS = 1 << 18
"""Elements at a time: 1 MiB of float32. SmolLM2-135M to bfloat16 on one core: 0.12 s, whole tensors 0.19
s."""

Decoder = Callable[[torch.Tensor], torch.Tensor]
"""Blocks as bytes [N, bytes per block] -> float32 [N, elements per block]."""


def dequantize(
    data: torch.Tensor, type_name: str, shape: tuple[int, ...], dtype: torch.dtype
) -> torch.Tensor:
    """Return a tensor's values.

    Args:
        data: its bytes, uint8, contiguous.
        type_name: GGUF's name of the format.
        shape: of the result, the contiguous dimension last.
        dtype: of the result; rounded once, from float32.
    """
    if type_name in _PLAIN:
        return data.view(_PLAIN[type_name]).view(shape).to(dtype, copy=True)
    decode, block_len, block_bytes = _DECODERS[type_name]
    blocks = data.view(-1, block_bytes)
    result = torch.empty(shape, dtype=dtype)
    flat = result.view(-1, block_len)
    step = _SLICE_ELEMENTS // block_len
    for start in range(0, blocks.shape[0], step):
        flat[start : start + step] = decode(blocks[start : start + step])
    return result


def _half(blocks: torch.Tensor, start: int) -> torch.Tensor:
    """Return the float16 at a byte of each block, as float32 [N, 1]."""
    return blocks[:, start : start + 2].contiguous().view(torch.float16).float()


def _nibbles(packed: torch.Tensor) -> torch.Tensor:
    """Return the low halves of a run of bytes, then the high halves: [..., n] -> [..., 2n]."""
    return torch.cat([packed & 0x0F, packed >> 4], dim=-1)


def _fifth_bits(blocks: torch.Tensor, start: int) -> torch.Tensor:
    """Return 32 bits of each block as [N, 32], worth 16 each."""
    shifts = torch.arange(8, dtype=torch.uint8)
    bits = (blocks[:, start : start + 4, None] >> shifts) & 1
    return bits.flatten(1) << 4


def _decode_q4_0(blocks: torch.Tensor) -> torch.Tensor:
    return (_nibbles(blocks[:, 2:]).view(torch.int8) - 8).float().mul_(_half(blocks, 0))


def _decode_q4_1(blocks: torch.Tensor) -> torch.Tensor:
    return _nibbles(blocks[:, 4:]).float().mul_(_half(blocks, 0)).add_(_half(blocks, 2))


def _decode_q5_0(blocks: torch.Tensor) -> torch.Tensor:
    values = _nibbles(blocks[:, 6:]) | _fifth_bits(blocks, 2)
    return (values.view(torch.int8) - 16).float().mul_(_half(blocks, 0))


def _decode_q5_1(blocks: torch.Tensor) -> torch.Tensor:
    values = _nibbles(blocks[:, 8:]) | _fifth_bits(blocks, 4)
    return values.float().mul_(_half(blocks, 0)).add_(_half(blocks, 2))


def _decode_q8_0(blocks: torch.Tensor) -> torch.Tensor:
    return blocks[:, 2:].view(torch.int8).float().mul_(_half(blocks, 0))


def _scales_and_minima(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return scale and minimum of the 8 groups of 32, [N, 8, 1], from 12 bytes of six bits each."""
    low, middle, high = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scales = torch.cat([low & 0x3F, (high & 0x0F) | ((low >> 2) & 0x30)], dim=-1)
    minima = torch.cat([middle & 0x3F, (high >> 4) | ((middle >> 2) & 0x30)], dim=-1)
    scales_N8 = scales.float().mul_(_half(blocks, 0))
    minima_N8 = minima.float().mul_(_half(blocks, 2))
    return scales_N8.unsqueeze(-1), minima_N8.unsqueeze(-1)


def _decode_q4_k(blocks: torch.Tensor) -> torch.Tensor:
    scales, minima = _scales_and_minima(blocks)
    # Each 32 bytes hold two groups: the low halves are one, the high halves the next.
    values = _nibbles(blocks[:, 16:].reshape(-1, 4, 32)).view(-1, 8, 32)
    return values.float().mul_(scales).sub_(minima).flatten(1)


def _decode_q5_k(blocks: torch.Tensor) -> torch.Tensor:
    scales, minima = _scales_and_minima(blocks)
    low = _nibbles(blocks[:, 48:].reshape(-1, 4, 32)).view(-1, 8, 32)
    # Bit g of byte i is the fifth bit of element i of group g.
    shifts = torch.arange(8, dtype=torch.uint8).view(8, 1)
    high = ((blocks[:, None, 16:48] >> shifts) & 1) << 4
    return (low | high).float().mul_(scales).sub_(minima).flatten(1)


def _decode_q6_k(blocks: torch.Tensor) -> torch.Tensor:
    # Two halves of 128 elements: 64 bytes of low nibbles, 32 bytes with two high bits for each of four
    # groups.
    low = _nibbles(blocks[:, :128].reshape(-1, 2, 64)).view(-1, 2, 4, 32)
    shifts = torch.arange(0, 8, 2, dtype=torch.uint8).view(4, 1)
    high = ((blocks[:, 128:192].reshape(-1, 2, 1, 32) >> shifts) & 3) << 4
    values = ((low | high).view(torch.int8) - 32).float().view(-1, 16, 16)
    scales = blocks[:, 192:208].view(torch.int8).float().mul_(_half(blocks, 208))
    return values.mul_(scales.unsqueeze(-1)).flatten(1)


_PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}

_DECODERS: dict[str, tuple[Decoder, int, int]] = {
    "Q4_0": (_decode_q4_0, 32, 18),
    "Q4_1": (_decode_q4_1, 32, 20),
    "Q5_0": (_decode_q5_0, 32, 22),
    "Q5_1": (_decode_q5_1, 32, 24),
    "Q8_0": (_decode_q8_0, 32, 34),
    "Q4_K": (_decode_q4_k, 256, 144),
    "Q5_K": (_decode_q5_k, 256, 176),
    "Q6_K": (_decode_q6_k, 256, 210),
}
"""Per format: decoder, elements and bytes of a block."""
