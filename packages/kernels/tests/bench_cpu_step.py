"""What one decode step of a small model costs beside its linears, op by op and together.

Not collected by default (the name does not start with test_). Run on an idle machine:
    python -m pytest packages/kernels/tests/bench_cpu_step.py --benchmark-columns=median,iqr,rounds

The shape is SmolLM2-135M: 30 layers, hidden 576, intermediate 1,536, 9 query and 3 kv heads of 64,
49,152 tokens. Every layer has a cache of its own, so that keys and values come from memory as in a
real step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import kernels
import pytest
import torch

_LAYERS, _HIDDEN, _INTERMEDIATE, _HEADS, _KV_HEADS, _HEAD = 30, 576, 1536, 9, 3, 64
_VOCAB, _BLOCK = 49_152, 16
_QKV = (_HEADS + 2 * _KV_HEADS) * _HEAD


class Step:
    """The tensors of one step of `batch` requests, `num_queries` tokens each, `context` keys long."""

    def __init__(
        self, batch: int, context: int, num_queries: int = 1, dtype: torch.dtype = torch.bfloat16
    ) -> None:
        torch.manual_seed(0)
        num_tokens, width = batch * num_queries, -(-context // _BLOCK)
        self.hidden = torch.randn(num_tokens, _HIDDEN).to(dtype)
        self.gate_up = torch.randn(num_tokens, 2 * _INTERMEDIATE).to(dtype)
        self.qkv = torch.randn(num_tokens, _QKV).to(dtype)
        self.weight = torch.ones(_HIDDEN, dtype=dtype)
        self.table = torch.randperm(batch * width).view(batch, width).int()
        self.caches = [
            torch.randn(2, batch * width, _KV_HEADS, _BLOCK, _HEAD).to(dtype) for _ in range(_LAYERS)
        ]
        self.starts = torch.arange(batch + 1).int() * num_queries
        self.lens = torch.full((batch,), context, dtype=torch.int32)
        self.positions = torch.arange(context - num_queries, context).repeat(batch)
        rows = torch.arange(batch).repeat_interleave(num_queries)
        self.slots = self.table[rows, self.positions // _BLOCK].long() * _BLOCK + self.positions % _BLOCK
        angles = torch.arange(context)[:, None] * torch.linspace(1, 0.01, _HEAD // 2)
        self.cos_sin = torch.cat([angles.cos(), angles.sin()], dim=1)

    def norms(self) -> None:
        hidden, residual = self.hidden, self.hidden
        for _ in range(2 * _LAYERS):
            _, residual = kernels.fused_add_rms_norm(hidden, residual, self.weight, 1e-5)

    def activations(self) -> None:
        for _ in range(_LAYERS):
            kernels.silu_and_mul(self.gate_up)

    def rotary_and_cache_writes(self) -> None:
        for cache in self.caches:
            query, key, value = self.split()
            kernels.rotary_embedding(self.positions, query, key, self.cos_sin, _HEAD, True)
            kernels.write_kv_cache(self.heads(key), self.heads(value), cache[0], cache[1], self.slots)

    def attention(self) -> None:
        for cache in self.caches:
            query = self.heads(self.split()[0])
            kernels.paged_attention(
                query, cache[0], cache[1], self.table, self.starts, self.lens, _HEAD**-0.5
            )

    def all(self) -> None:
        self.norms()
        self.activations()
        self.rotary_and_cache_writes()
        self.attention()

    def split(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        query, key, value = self.qkv.split([_HEADS * _HEAD, _KV_HEADS * _HEAD, _KV_HEADS * _HEAD], dim=1)
        return query, key, value

    @staticmethod
    def heads(x: torch.Tensor) -> torch.Tensor:
        return x.view(x.shape[0], -1, _HEAD)


@pytest.mark.parametrize("part", ["norms", "activations", "rotary_and_cache_writes", "attention", "all"])
@pytest.mark.parametrize(("batch", "context"), [(1, 100), (1, 2000), (32, 100), (32, 1000)])
def test_decode_step(benchmark: Any, batch: int, context: int, part: str) -> None:
    run: Callable[[], None] = getattr(Step(batch, context), part)
    with torch.inference_mode():
        benchmark(run)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bfloat16", "float32"])
def test_prompt_of_1024_tokens(benchmark: Any, dtype: torch.dtype) -> None:
    step = Step(1, 1024, num_queries=1024, dtype=dtype)
    with torch.inference_mode():
        benchmark(step.attention)


@pytest.mark.parametrize("batch", [1, 32])
@pytest.mark.parametrize("step", ["gumbel", "top_k_top_p", "logprobs", "penalties", "nonfinite"])
def test_sampling(benchmark: Any, batch: int, step: str) -> None:
    torch.manual_seed(0)
    logits = torch.randn(batch, _VOCAB) * 4
    ids, rows = torch.arange(batch), torch.ones(batch)
    mask, counts = torch.zeros(batch, _VOCAB, dtype=torch.bool), torch.zeros(batch, _VOCAB, dtype=torch.int32)
    top_k, top_p = torch.full((batch,), 50, dtype=torch.int32), torch.full((batch,), 0.9)
    calls: dict[str, Callable[[], object]] = {
        "gumbel": lambda: kernels.gumbel_sample(logits, ids, ids),
        "top_k_top_p": lambda: kernels.apply_top_k_top_p(logits.clone(), top_k, top_p),
        "logprobs": lambda: kernels.gather_logprobs(logits, ids, 20),
        "penalties": lambda: kernels.apply_penalties(logits, mask, counts, rows, rows, rows),
        "nonfinite": lambda: kernels.nonfinite_rows(logits),
    }
    benchmark(calls[step])


@pytest.mark.parametrize("num_rows", [1, 8, 32, 128])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bfloat16", "float32"])
@pytest.mark.parametrize("layout", ["packed", "plain"])
def test_linears_of_a_step(benchmark: Any, layout: str, dtype: torch.dtype, num_rows: int) -> None:
    shapes = [(_QKV, _HIDDEN), (_HIDDEN, _HIDDEN), (2 * _INTERMEDIATE, _HIDDEN), (_HIDDEN, _INTERMEDIATE)]
    weights = [torch.randn(shape).to(dtype) for shape in [*shapes * _LAYERS, (_VOCAB, _HIDDEN)]]
    inputs = [torch.randn(num_rows, weight.shape[1]).to(dtype) for weight in weights]
    packed = [kernels.pack_linear(weight) if layout == "packed" else weight for weight in weights]

    def run() -> None:
        for x, weight in zip(inputs, packed, strict=True):
            assert weight is not None
            kernels.linear(x, weight)

    with torch.inference_mode():
        benchmark.pedantic(run, rounds=5, warmup_rounds=1)
