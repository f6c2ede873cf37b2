"""Backends: what their YAML declares, why they are refused, and that all compute the same as brute force."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import pytest
import torch
import yaml
from engine.attention.backend import AttentionBackend, check_backend
from engine.attention.layer import Attention
from engine.config.attention_choice import AttentionNeeds, AttentionOption, choose_attention
from engine.config.catalog import find_conf_dir
from engine.config.component import load_target
from engine.forward_context import AttentionMetadata, get_forward_context, set_forward_context
from engine.types.attention import AttentionCapabilities
from engine.types.errors import ConfigError

TREES = {
    path.stem: yaml.safe_load(path.read_text())
    for path in sorted((find_conf_dir() / "attention").glob("*.yaml"))
    if path.stem != "auto"
}
BACKENDS: dict[str, type[AttentionBackend]] = {
    name: load_target(tree["_target_"]) for name, tree in TREES.items()
}
ON_THIS_HOST = [name for name, backend in BACKENDS.items() if "cpu" in backend.capabilities.platforms]

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Context:
    attention_backend: type[AttentionBackend]
    dtype: torch.dtype = torch.float32
    cache_dtype: torch.dtype = torch.float32
    device: torch.device = CPU
    block_size: int = 4


def options() -> list[AttentionOption]:
    return [
        AttentionOption(
            name=name,
            target=tree["_target_"],
            capabilities=msgspec.convert(tree["capabilities"], AttentionCapabilities),
        )
        for name, tree in TREES.items()
    ]


@pytest.mark.parametrize("name", TREES)
def test_yaml_declares_the_capabilities_of_the_class(name: str) -> None:
    assert msgspec.convert(TREES[name]["capabilities"], AttentionCapabilities) == BACKENDS[name].capabilities


def test_the_fastest_fitting_backend_is_chosen_and_the_others_reasons_are_given() -> None:
    on_cpu = choose_attention(options(), AttentionNeeds(platform="cpu", dtype="float32", head_size=64))
    assert (on_cpu.option.name, on_cpu.refused) == ("cpu", {})
    on_gpu = choose_attention(options(), AttentionNeeds(platform="cuda", dtype="bfloat16", head_size=64))
    assert on_gpu.option.name == "torch"
    assert on_gpu.refused == {"cpu": "runs on cpu, not cuda"}


def test_when_none_fits_every_reason_is_named() -> None:
    with pytest.raises(ConfigError, match=r"cpu .*float8.*torch .*float8"):
        choose_attention(options(), AttentionNeeds(platform="cpu", dtype="float8", head_size=64))


def test_a_backend_that_cannot_serve_a_layer_says_which_and_why() -> None:
    class NoWindow(AttentionBackend):
        capabilities = AttentionCapabilities(platforms=["cpu"], dtypes=["float32"], block_sizes=[16, 32])

    needs = AttentionNeeds(platform="cpu", dtype="bfloat16", head_size=64, block_size=8, sliding_window=True)
    with pytest.raises(ConfigError) as caught:
        check_backend(NoWindow, needs, "model.layers.3.self_attn.attn")
    message = str(caught.value)
    for part in ("NoWindow", "model.layers.3.self_attn.attn", "bfloat16", "16 or 32", "sliding_window"):
        assert part in message


def test_a_layer_refuses_such_a_backend_when_it_is_built() -> None:
    with pytest.raises(ConfigError, match="multiple of 8"):
        Attention(2, 12, 1.0, 1, context=Context(BACKENDS["torch"]), prefix="attn")


def brute_force(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float, window: int, soft_cap: float
) -> torch.Tensor:
    """Return attention of the last len(query) positions over all keys, one score at a time."""
    num_queries, num_heads, _ = query.shape
    num_keys, num_kv_heads, _ = keys.shape
    out = torch.zeros_like(query)
    for q in range(num_queries):
        position = num_keys - num_queries + q
        first = 0 if window == 0 else max(0, position - window + 1)
        for h in range(num_heads):
            kv = h // (num_heads // num_kv_heads)
            scores = keys[first : position + 1, kv] @ query[q, h] * scale
            if soft_cap:
                scores = soft_cap * torch.tanh(scores / soft_cap)
            out[q, h] = torch.softmax(scores, 0) @ values[first : position + 1, kv]
    return out


@pytest.mark.parametrize("name", ON_THIS_HOST)
@pytest.mark.parametrize(("window", "soft_cap"), [(0, 0.0), (3, 0.0), (0, 2.0), (5, 1.5)])
@pytest.mark.parametrize("cache_dtype", [torch.float32, torch.bfloat16])
def test_layer_over_a_mixed_batch_equals_brute_force(
    name: str, window: int, soft_cap: float, cache_dtype: torch.dtype
) -> None:
    """A prefill, a chunk of a longer prompt, a decode and a padded token share one step."""
    generator = torch.Generator().manual_seed(7)
    num_heads, num_kv_heads, head_size, block_size, num_blocks = 4, 2, 8, 4, 16
    context = Context(BACKENDS[name], cache_dtype=cache_dtype)
    layer = Attention(
        num_heads,
        head_size,
        0.3,
        num_kv_heads,
        context=context,
        prefix="attn",
        sliding_window=window,
        soft_cap=soft_cap,
    )
    shape = (num_blocks, num_kv_heads, block_size, head_size)
    key_cache, value_cache = torch.zeros(shape, dtype=cache_dtype), torch.zeros(shape, dtype=cache_dtype)
    layer.bind_cache(key_cache, value_cache)

    computed, scheduled = [0, 6, 9], [5, 4, 1]
    tables = [[3, 9], [12, 1, 7], [2, 14, 5]]
    histories: list[tuple[torch.Tensor, torch.Tensor]] = []
    slots: list[int] = []
    for done, new, table in zip(computed, scheduled, tables, strict=True):
        total = done + new
        keys = torch.randn(total, num_kv_heads, head_size, generator=generator)
        values = torch.randn(total, num_kv_heads, head_size, generator=generator)
        for position in range(done):
            block, offset = table[position // block_size], position % block_size
            key_cache[block, :, offset] = keys[position].to(cache_dtype)
            value_cache[block, :, offset] = values[position].to(cache_dtype)
        slots += [table[p // block_size] * block_size + p % block_size for p in range(done, total)]
        histories.append((keys, values))
    padding = 1
    qkv = torch.randn(
        sum(scheduled) + padding, (num_heads + 2 * num_kv_heads) * head_size, generator=generator
    )
    query, key, value = qkv.split([num_heads * head_size, *[num_kv_heads * head_size] * 2], dim=-1)
    starts = [0, 5, 9, 10]
    for request, (keys, values) in enumerate(histories):
        rows = slice(starts[request], starts[request + 1])
        key[rows] = keys[computed[request] :].flatten(1)
        value[rows] = values[computed[request] :].flatten(1)
    metadata = AttentionMetadata(
        query_start_loc_B1=torch.tensor(starts, dtype=torch.int32),
        seq_lens_B=torch.tensor([5, 10, 10], dtype=torch.int32),
        block_table_BM=torch.tensor([[*table, 0][:3] for table in tables], dtype=torch.int32),
        slot_mapping_T=torch.tensor([*slots, -1]),
        num_requests=3,
        num_tokens=11,
        max_query_len=5,
        max_seq_len=10,
    )
    with set_forward_context(metadata):
        out = layer(query, key, value)
    assert out.shape == (11, num_heads * head_size)
    tolerance = 2e-6 if cache_dtype is torch.float32 else 2e-2
    for request, (keys, values) in enumerate(histories):
        rows = slice(starts[request], starts[request + 1])
        expected = brute_force(
            query[rows].unflatten(-1, (num_heads, head_size)), keys, values, 0.3, window, soft_cap
        )
        torch.testing.assert_close(out[rows], expected.flatten(1), atol=tolerance, rtol=tolerance)
    assert key_cache[0].abs().sum() == 0, "padding must not reach the null block"


def test_cache_need_is_stated_per_rank() -> None:
    context = Context(BACKENDS["torch"], cache_dtype=torch.bfloat16)
    spec = Attention(8, 16, 1.0, 2, context=context, prefix="attn").kv_cache_spec()
    assert (spec.block_size, spec.num_kv_heads, spec.head_size, spec.dtype) == (4, 2, 16, "bfloat16")


def test_context_is_the_innermost_and_ends_with_its_block() -> None:
    def metadata(num_tokens: int) -> AttentionMetadata:
        empty = torch.empty(0)
        return AttentionMetadata(empty, empty, empty, empty, 0, num_tokens, 0, 0)

    with set_forward_context(metadata(1)):
        with set_forward_context(metadata(2)):
            assert get_forward_context().num_tokens == 2
        assert get_forward_context().num_tokens == 1
    with pytest.raises(AssertionError, match="set_forward_context"):
        get_forward_context()
