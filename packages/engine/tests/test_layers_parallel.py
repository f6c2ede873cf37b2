"""Every layer cut over two ranks gives what the whole layer gives, and loads its shards itself."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from distributed_ranks import run_ranks
from engine.attention.backends.torch import TorchAttention
from engine.distributed.parameter import ShardedParameter
from engine.layers.activation import get_gated_activation
from engine.layers.context import ModelContext
from engine.layers.embedding import ParallelLMHead, VocabParallelEmbedding
from engine.layers.linear import (
    ColumnParallelLinear,
    Linear,
    MergedColumnParallelLinear,
    QKVParallelLinear,
    ReplicatedLinear,
    RowParallelLinear,
)
from engine.layers.logits import LogitsProcessor
from engine.layers.mlp import GatedMLP
from engine.layers.norm import RMSNorm
from engine.quantization.methods.none import Unquantized
from engine.types.errors import CheckpointError
from torch import nn

CONTEXT = ModelContext(
    dtype=torch.float32,
    device=torch.device("cpu"),
    quantization=Unquantized(),
    attention_backend=TorchAttention,
    cache_dtype=torch.float32,
    block_size=4,
    max_model_len=64,
)


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def load(layer: nn.Module, **tensors: torch.Tensor | dict[str, torch.Tensor]) -> None:
    """Give each named parameter its full tensor, or one per part."""
    for name, given in tensors.items():
        parameter = layer.get_parameter(name)
        assert isinstance(parameter, ShardedParameter)
        if isinstance(given, dict):
            for shard_id, tensor in given.items():
                parameter.load_shard(tensor, shard_id)
        else:
            parameter.load_shard(given)
    for module in layer.modules():
        if isinstance(module, Linear):
            module.finish()


def check(results: list[torch.Tensor], expected: torch.Tensor) -> None:
    for result in results:
        torch.testing.assert_close(result, expected, atol=1e-5, rtol=1e-5)


X = random(5, 12)
WEIGHT, BIAS = random(8, 12, seed=1), random(8, seed=2)


@pytest.mark.parametrize("bias", [False, True])
def test_replicated_linear_is_whole_on_every_rank(bias: bool) -> None:
    def body(rank: int) -> torch.Tensor:
        layer = ReplicatedLinear(12, 8, bias=bias, context=CONTEXT, prefix="x")
        load(layer, weight=WEIGHT, **({"bias": BIAS} if bias else {}))
        return layer(X)

    check(run_ranks(2, body), F.linear(X, WEIGHT, BIAS if bias else None))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_column_parallel_results_join_to_the_whole(ranks: int, bias: bool) -> None:
    def body(rank: int) -> torch.Tensor:
        layer = ColumnParallelLinear(12, 8, bias=bias, context=CONTEXT, prefix="x")
        load(layer, weight=WEIGHT, **({"bias": BIAS} if bias else {}))
        return layer(X)

    expected = F.linear(X, WEIGHT, BIAS if bias else None)
    torch.testing.assert_close(torch.cat(run_ranks(ranks, body), dim=-1), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_row_parallel_sums_and_adds_its_bias_once(ranks: int, bias: bool) -> None:
    def body(rank: int) -> torch.Tensor:
        layer = RowParallelLinear(12, 8, bias=bias, context=CONTEXT, prefix="x")
        load(layer, weight=WEIGHT, **({"bias": BIAS} if bias else {}))
        return layer(X.chunk(ranks, dim=-1)[rank])

    check(run_ranks(ranks, body), F.linear(X, WEIGHT, BIAS if bias else None))


def test_merged_parts_stay_together_on_each_rank() -> None:
    gate, up = random(6, 12, seed=3), random(10, 12, seed=4)

    def body(rank: int) -> torch.Tensor:
        layer = MergedColumnParallelLinear(12, {"gate": 6, "up": 10}, bias=False, context=CONTEXT, prefix="x")
        load(layer, weight={"gate": gate, "up": up})
        return layer(X)

    for rank, result in enumerate(run_ranks(2, body)):
        expected = torch.cat([F.linear(X, gate.chunk(2)[rank]), F.linear(X, up.chunk(2)[rank])], dim=-1)
        torch.testing.assert_close(result, expected, atol=1e-5, rtol=1e-5)


def test_parts_fused_in_the_checkpoint_load_like_separate_ones() -> None:
    gate, up = random(6, 12, seed=3), random(10, 12, seed=4)
    sizes = {"gate": 6, "up": 10}

    def body(rank: int) -> torch.Tensor:
        apart = MergedColumnParallelLinear(12, sizes, bias=False, context=CONTEXT, prefix="x")
        fused = MergedColumnParallelLinear(12, sizes, bias=False, context=CONTEXT, prefix="x")
        apart.get_parameter("weight").load_shard(gate, "gate")  # type: ignore[attr-defined]
        apart.get_parameter("weight").load_shard(up, "up")  # type: ignore[attr-defined]
        fused.get_parameter("weight").load_shard(torch.cat([gate, up]))  # type: ignore[attr-defined]
        return apart.get_parameter("weight").data - fused.get_parameter("weight").data

    check(run_ranks(2, body), torch.zeros(8, 12))


@pytest.mark.parametrize(("ranks", "num_kv_heads"), [(1, 2), (2, 2), (2, 4), (4, 2), (4, 1)])
def test_qkv_holds_each_ranks_heads(ranks: int, num_kv_heads: int) -> None:
    head_size, num_heads = 2, 4
    query = random(num_heads * head_size, 12, seed=5)
    key, value = (random(num_kv_heads * head_size, 12, seed=seed) for seed in (6, 7))
    biases = {name: random(len(x), seed=8) for name, x in (("q", query), ("k", key), ("v", value))}

    def body(rank: int) -> tuple[torch.Tensor, ...]:
        layer = QKVParallelLinear(
            12, head_size, num_heads, num_kv_heads, bias=True, context=CONTEXT, prefix="x"
        )
        load(layer, weight={"q": query, "k": key, "v": value}, bias=biases)
        return tuple(layer(X).split(list(layer.sizes), dim=-1))

    full_q, full_k, full_v = (
        F.linear(X, weight, biases[name]).view(5, -1, head_size)
        for name, weight in (("q", query), ("k", key), ("v", value))
    )
    for rank, (q, k, v) in enumerate(run_ranks(ranks, body)):
        heads = range(rank * num_heads // ranks, (rank + 1) * num_heads // ranks)
        kv_heads = sorted({head * num_kv_heads // num_heads for head in heads})
        torch.testing.assert_close(q.view(5, -1, head_size), full_q[:, list(heads)], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(k.view(5, -1, head_size), full_k[:, kv_heads], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(v.view(5, -1, head_size), full_v[:, kv_heads], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_embedding_looks_up_every_row_wherever_it_is(ranks: int) -> None:
    table = random(131, 6)
    ids = torch.tensor([0, 63, 64, 65, 100, 127, 128, 130])

    def body(rank: int) -> torch.Tensor:
        layer = VocabParallelEmbedding(131, 6, context=CONTEXT)
        load(layer, weight=table)
        return layer(ids)

    check(run_ranks(ranks, body), table[ids])


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_logits_cover_the_vocabulary_and_no_padding(ranks: int, tied: bool) -> None:
    table = random(131, 12)
    ids = torch.tensor([3, 130])

    def body(rank: int) -> torch.Tensor:
        embedding = VocabParallelEmbedding(131, 12, context=CONTEXT)
        head = ParallelLMHead(131, 12, tied_to=embedding if tied else None, context=CONTEXT, prefix="lm_head")
        load(embedding if tied else head, weight=table)
        if tied:
            head.finish()
            torch.testing.assert_close(embedding(ids), table[ids])  # the table outlives the packing
        logits = LogitsProcessor(131, scale=0.5, soft_cap=3.0).compute(head, X)
        assert logits.is_contiguous()
        return logits

    check(run_ranks(ranks, body), 3.0 * torch.tanh(0.5 * F.linear(X, table) / 3.0))


def test_logits_are_float32_whatever_the_model_computes_in() -> None:
    context = ModelContext(
        **{field: getattr(CONTEXT, field) for field in CONTEXT.__slots__ if field != "dtype"},
        dtype=torch.bfloat16,
    )
    head = ParallelLMHead(7, 12, context=context, prefix="lm_head")
    load(head, weight=random(7, 12))
    assert LogitsProcessor(7).compute(head, X.bfloat16()).dtype is torch.float32


@pytest.mark.parametrize(
    ("name", "activation"),
    [
        ("silu", F.silu),
        ("gelu", F.gelu),
        ("gelu_pytorch_tanh", lambda x: F.gelu(x, approximate="tanh")),
    ],
)
@pytest.mark.parametrize("ranks", [1, 2])
def test_gated_mlp_equals_its_formula(
    ranks: int, name: str, activation: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    gate, up, down = random(16, 12, seed=1), random(16, 12, seed=2), random(12, 16, seed=3)

    def body(rank: int) -> torch.Tensor:
        layer = GatedMLP(12, 16, name, bias=False, context=CONTEXT, prefix="mlp")
        layer.gate_up_proj.get_parameter("weight").load_shard(gate, "gate")  # type: ignore[attr-defined]
        layer.gate_up_proj.get_parameter("weight").load_shard(up, "up")  # type: ignore[attr-defined]
        layer.down_proj.get_parameter("weight").load_shard(down)  # type: ignore[attr-defined]
        load(layer)
        return layer(X)

    check(run_ranks(ranks, body), F.linear(activation(F.linear(X, gate)) * F.linear(X, up), down))


def test_an_unknown_activation_is_refused_with_the_known_ones() -> None:
    with pytest.raises(CheckpointError, match=r"'relu9'.*silu"):
        get_gated_activation("relu9")


def test_norm_adds_the_residual_before_it_normalises() -> None:
    layer = RMSNorm(12, 1e-5, context=CONTEXT)
    load(layer, weight=WEIGHT[0])
    residual = random(5, 12, seed=9)
    total = X + residual
    expected = total / (total.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * WEIGHT[0]
    out, new_residual = layer.add_and_norm(X, residual)
    check([out, layer(total)], expected)
    check([new_residual], total)


def test_a_tensor_of_another_shape_is_refused_with_both_shapes() -> None:
    layer = ColumnParallelLinear(12, 8, bias=False, context=CONTEXT, prefix="x")
    with pytest.raises(ValueError, match=r"\[8, 11\].*\[8, 12\]"):
        layer.get_parameter("weight").load_shard(random(8, 11))  # type: ignore[attr-defined]


def test_packing_gives_the_plain_weight_back_unless_it_is_shared() -> None:
    layer = ReplicatedLinear(12, 8, bias=False, context=CONTEXT, prefix="x")
    load(layer, weight=WEIGHT)
    assert dict(layer.named_parameters()) == {}, "float32 weights are packed on the CPU"
    embedding = VocabParallelEmbedding(8, 12, context=CONTEXT)
    head = ParallelLMHead(8, 12, tied_to=embedding, context=CONTEXT, prefix="lm_head")
    load(embedding, weight=WEIGHT)
    head.finish()
    assert embedding.weight.shape == (8, 12)
