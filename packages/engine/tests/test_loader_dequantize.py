"""GGUF's block formats against the gguf package, bit for bit."""

from __future__ import annotations

from typing import Any

import gguf
import numpy as np
import pytest
import torch
from engine.config.gguf_file import TENSOR_TYPES
from engine.loader.dequantize import dequantize
from numpy.typing import NDArray

ROWS, COLUMNS = 37, 1024
# Where a block keeps its float16 scales: random bytes there would be infinities and NaN.
SCALE_PLACES = {
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q8_0": (0,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
}


def random_blocks(name: str, rng: np.random.Generator) -> NDArray[Any]:
    """Return a matrix of random blocks as bytes: every pattern of bits but those of non-finite scales."""
    _, block_len, block_bytes = next(entry for entry in TENSOR_TYPES.values() if entry[0] == name)
    blocks = rng.integers(0, 256, (ROWS, COLUMNS // block_len, block_bytes), dtype=np.uint8)
    for place in SCALE_PLACES.get(name, ()):
        scales = rng.normal(scale=0.1, size=blocks.shape[:2]).astype(np.float16)
        blocks[..., place : place + 2] = scales[..., None].view(np.uint8)
    return blocks.reshape(ROWS, -1)


@pytest.mark.parametrize("name", SCALE_PLACES)
def test_blocks_decode_to_the_same_bits(name: str) -> None:
    blocks = random_blocks(name, np.random.default_rng(0))
    expected = gguf.dequantize(blocks, gguf.GGMLQuantizationType[name])
    actual = dequantize(torch.from_numpy(blocks.ravel()), name, (ROWS, COLUMNS), torch.float32)
    np.testing.assert_array_equal(actual.numpy(), expected)


@pytest.mark.parametrize("name", ["F32", "F16", "BF16"])
def test_plain_types_keep_their_values(name: str) -> None:
    values = np.random.default_rng(0).normal(size=(ROWS, COLUMNS)).astype(np.float32)
    kind = gguf.GGMLQuantizationType[name]
    stored = gguf.quantize(values, kind)
    actual = dequantize(torch.from_numpy(stored.view(np.uint8).ravel()), name, (ROWS, COLUMNS), torch.float32)
    np.testing.assert_array_equal(actual.numpy(), gguf.dequantize(stored, kind))


@pytest.mark.parametrize("name", ["Q4_1", "Q8_0", "F32"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_result_is_rounded_once(name: str, dtype: torch.dtype) -> None:
    values = np.random.default_rng(1).normal(size=(ROWS, COLUMNS)).astype(np.float32)
    data = torch.from_numpy(gguf.quantize(values, gguf.GGMLQuantizationType[name]).view(np.uint8).ravel())
    exact = dequantize(data, name, (ROWS, COLUMNS), torch.float32)
    assert torch.equal(dequantize(data, name, (ROWS, COLUMNS), dtype), exact.to(dtype))


def test_tensors_longer_than_a_slice_are_whole() -> None:
    rows = 600
    blocks = random_blocks("Q4_0", np.random.default_rng(2))
    tall = np.tile(blocks, (rows // ROWS + 1, 1))[:rows]
    expected = gguf.dequantize(tall, gguf.GGMLQuantizationType.Q4_0)
    actual = dequantize(torch.from_numpy(tall.ravel()), "Q4_0", (rows, COLUMNS), torch.float32)
    np.testing.assert_array_equal(actual.numpy(), expected)


def test_result_does_not_share_the_file() -> None:
    data = torch.zeros(64, dtype=torch.uint8)
    result = dequantize(data, "F32", (4, 4), torch.float32)
    data.fill_(1)
    assert torch.equal(result, torch.zeros(4, 4))


def test_every_supported_type_is_tested() -> None:
    assert {name for name, _, _ in TENSOR_TYPES.values()} == {*SCALE_PLACES, "F32", "F16", "BF16"}
