"""Paged attention: the CPU path against the reference and against a float64 oracle, and what it refuses."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import kernels
import pytest
import torch
from kernels.reference.attention import paged_attention as reference_attention

# (query tokens, keys) of each request.
_DECODES = [(1, 1), (1, 7), (1, 16), (1, 100), (1, 513)]
_PROMPTS = [(5, 5), (33, 33), (130, 130)]
_CHUNKS = [(2, 40), (64, 64 + 37), (17, 600)]
_MIXED = [(1, 20), (0, 0), (9, 9), (1, 600), (40, 55), (0, 0)]


@dataclass(frozen=True)
class Batch:
    query_THD: torch.Tensor
    key_cache_NKSD: torch.Tensor
    value_cache_NKSD: torch.Tensor
    block_table_BM: torch.Tensor
    query_start_loc_B1: torch.Tensor
    seq_lens_B: torch.Tensor

    def tensors(self) -> tuple[torch.Tensor, ...]:
        return (
            self.query_THD,
            self.key_cache_NKSD,
            self.value_cache_NKSD,
            self.block_table_BM,
            self.query_start_loc_B1,
            self.seq_lens_B,
        )


def _batch(
    requests: list[tuple[int, int]],
    *,
    num_heads: int = 9,
    num_kv_heads: int = 3,
    head_size: int = 64,
    block_size: int = 16,
    dtype: torch.dtype = torch.float32,
    num_padding: int = 0,
) -> Batch:
    generator = torch.Generator().manual_seed(1)
    starts = torch.tensor([0] + [num_queries for num_queries, _ in requests]).cumsum(0)
    lens = torch.tensor([num_keys for _, num_keys in requests])
    width = max(1, -(-int(lens.max()) // block_size))
    num_blocks = len(requests) * width + 3
    blocks = torch.randperm(num_blocks, generator=generator)[: len(requests) * width]
    # The query is a slice of a qkv tensor, as in a model; unwritten cache is poison.
    size = num_heads * head_size
    qkv = torch.randn(int(starts[-1]) + num_padding, size + 32, generator=generator).to(dtype)
    cache = torch.full((2, num_blocks, num_kv_heads, block_size, head_size), float("nan"), dtype=dtype)
    table = blocks.view(len(requests), width).int()
    for request, num_keys in enumerate(lens.tolist()):
        for position in range(num_keys):
            block, offset = int(table[request, position // block_size]), position % block_size
            values = torch.randn(2, num_kv_heads, head_size, generator=generator)
            cache[:, block, :, offset] = values.to(dtype)
    query = qkv[:, :size].unflatten(1, (num_heads, head_size))
    return Batch(query, cache[0], cache[1], table, starts.int(), lens.int())


def _oracle(batch: Batch, scale: float, **options: Any) -> torch.Tensor:
    """Return attention of each query token by itself, in float64, from the formula."""
    window, cap = options.get("sliding_window", 0), options.get("soft_cap", 0.0)
    sinks, causal = options.get("sinks_H"), options.get("causal", True)
    query = batch.query_THD.double()
    group = query.shape[1] // batch.key_cache_NKSD.shape[1]
    out = torch.zeros(query.shape, dtype=torch.float64)
    starts = batch.query_start_loc_B1.tolist()
    for request, num_keys in enumerate(batch.seq_lens_B.tolist()):
        blocks = batch.block_table_BM[request].long()
        keys, values = (
            cache[blocks].transpose(1, 2).flatten(0, 1)[:num_keys].double().repeat_interleave(group, 1)
            for cache in (batch.key_cache_NKSD, batch.value_cache_NKSD)
        )
        num_queries = starts[request + 1] - starts[request]
        for i in range(num_queries):
            position = num_keys - num_queries + i
            low = max(0, position - window + 1) if window else 0
            high = position + 1 if causal else num_keys
            scores = (keys[low:high] * query[starts[request] + i]).sum(-1) * scale
            scores = cap * torch.tanh(scores / cap) if cap else scores
            if sinks is not None:
                scores = torch.cat([scores, sinks.double()[None]])
            weights = torch.softmax(scores, dim=0)[: high - low]
            out[starts[request] + i] = (weights[:, :, None] * values[low:high]).sum(0)
    return out


_OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "window": {"sliding_window": 20},
    "cap": {"soft_cap": 3.0},
    "sinks": {"sinks_H": torch.linspace(-2, 3, 9)},
    "all": {"sliding_window": 33, "soft_cap": 5.0, "sinks_H": torch.linspace(-2, 3, 9)},
    "full": {"causal": False},
}
_REQUESTS = {"decode": _DECODES, "prompt": _PROMPTS, "chunk": _CHUNKS, "mixed": _MIXED}


@pytest.mark.parametrize("options", _OPTIONS.values(), ids=_OPTIONS)
@pytest.mark.parametrize("requests", _REQUESTS.values(), ids=_REQUESTS)
def test_float32_agrees_with_a_float64_oracle(
    requests: list[tuple[int, int]], options: dict[str, Any]
) -> None:
    batch = _batch(requests)
    expected = _oracle(batch, 0.125, **options)
    for attention in (kernels.paged_attention, reference_attention):
        out = attention(*batch.tensors(), 0.125, **options)
        torch.testing.assert_close(out.double(), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
@pytest.mark.parametrize("requests", _REQUESTS.values(), ids=_REQUESTS)
def test_16_bit_types_agree_with_the_reference(requests: list[tuple[int, int]], dtype: torch.dtype) -> None:
    batch = _batch(requests, dtype=dtype)
    out = kernels.paged_attention(*batch.tensors(), 0.125)
    assert out.dtype is dtype
    expected = reference_attention(*batch.tensors(), 0.125)
    torch.testing.assert_close(out.float(), expected.float(), atol=0.01, rtol=0.01)


@pytest.mark.parametrize(
    ("num_heads", "num_kv_heads", "head_size", "block_size"),
    [
        (8, 8, 8, 4),
        (8, 2, 16, 16),
        (4, 1, 80, 32),
        (14, 2, 64, 16),
        (5, 1, 128, 64),
        (2, 2, 256, 8),
        (6, 3, 24, 5),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_head_layouts_agree_with_the_reference(
    num_heads: int, num_kv_heads: int, head_size: int, block_size: int, dtype: torch.dtype
) -> None:
    batch = _batch(
        [(1, 50), (30, 70), (1, 1)],
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_size=head_size,
        block_size=block_size,
        dtype=dtype,
    )
    out = kernels.paged_attention(*batch.tensors(), head_size**-0.5)
    expected = reference_attention(*batch.tensors(), head_size**-0.5)
    tolerance = 1e-5 if dtype is torch.float32 else 0.01
    torch.testing.assert_close(out.float(), expected.float(), atol=tolerance, rtol=tolerance)


def test_padding_tokens_come_back_as_zeros() -> None:
    batch = _batch([(1, 5), (3, 3)], num_padding=4)
    for attention in (kernels.paged_attention, reference_attention):
        assert (attention(*batch.tensors(), 0.1)[-4:] == 0).all()


@pytest.mark.parametrize("num_threads", [1, 2])
def test_a_row_does_not_depend_on_its_batch(num_threads: int) -> None:
    batch = _batch([(1, 1300), (1, 20), (40, 90), (1, 700)])
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        together = kernels.paged_attention(*batch.tensors(), 0.125)
        for request in range(4):
            start, end = batch.query_start_loc_B1[request : request + 2].tolist()
            alone = replace(
                batch,
                query_THD=batch.query_THD[start:end],
                block_table_BM=batch.block_table_BM[request : request + 1],
                query_start_loc_B1=torch.tensor([0, end - start], dtype=torch.int32),
                seq_lens_B=batch.seq_lens_B[request : request + 1],
            )
            assert torch.equal(kernels.paged_attention(*alone.tensors(), 0.125), together[start:end])
    finally:
        torch.set_num_threads(before)


def test_a_chunked_prompt_equals_the_whole_prompt_bit_for_bit() -> None:
    whole = _batch([(150, 150)])
    expected = kernels.paged_attention(*whole.tensors(), 0.125)
    for start, end in ((0, 50), (50, 52), (52, 150)):
        chunk = replace(
            whole,
            query_THD=whole.query_THD[start:end],
            query_start_loc_B1=torch.tensor([0, end - start], dtype=torch.int32),
            seq_lens_B=torch.tensor([end], dtype=torch.int32),
        )
        assert torch.equal(kernels.paged_attention(*chunk.tensors(), 0.125), expected[start:end])


def test_blocks_before_the_window_may_be_gone() -> None:
    batch = _batch([(1, 100), (6, 90)])
    expected = kernels.paged_attention(*batch.tensors(), 0.125, sliding_window=16)
    batch.block_table_BM[:, :4] = -1
    for attention in (kernels.paged_attention, reference_attention):
        out = attention(*batch.tensors(), 0.125, sliding_window=16)
        torch.testing.assert_close(out, expected)


_GOOD = _batch([(1, 20), (5, 9)])


def _int32(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"block_table_BM": _GOOD.block_table_BM + 1000}, "block_table"),
        ({"block_table_BM": _GOOD.block_table_BM - 1000}, "block_table"),
        ({"block_table_BM": _GOOD.block_table_BM[:1]}, "block_table"),
        ({"seq_lens_B": _int32(33, 9)}, "seq_lens"),
        ({"seq_lens_B": _int32(20, 4)}, "seq_lens"),
        ({"seq_lens_B": _int32(-1, 9)}, "seq_lens"),
        ({"seq_lens_B": _int32(20, 9, 9)}, "seq_lens"),
        ({"query_start_loc_B1": _int32(0, 1, 7)}, "query_start_loc"),
        ({"query_start_loc_B1": _int32(0, 7, 6)}, "query_start_loc"),
        ({"query_start_loc_B1": _int32(-2, 1, 6)}, "query_start_loc"),
        ({"query_THD": _GOOD.query_THD[:, :8]}, "query"),
        ({"query_THD": _GOOD.query_THD[..., :32]}, "query"),
        ({"value_cache_NKSD": _GOOD.value_cache_NKSD[1:]}, "value_cache"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, torch.Tensor], message: str) -> None:
    batch = replace(_GOOD, **change)
    for attention in (kernels.paged_attention, reference_attention):
        with pytest.raises(ValueError, match=message):
            attention(*batch.tensors(), 0.125)
