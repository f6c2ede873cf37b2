"""Mesh and shard arithmetic: partitions, neighbours, and shares that add up to the whole."""

from __future__ import annotations

import pytest
from engine.config.parallel import ParallelConfig
from engine.distributed.mesh import AXES, Mesh, build_mesh
from engine.distributed.sharding import (
    Part,
    merge,
    share_heads,
    split_even,
    split_qkv,
    split_vocabulary,
)
from engine.types.errors import ConfigError
from hypothesis import given
from hypothesis import strategies as st

sizes = st.integers(1, 3)


@given(sizes, sizes, sizes, sizes)
def test_groups_of_every_axis_partition_the_world(
    data: int, pipeline: int, context: int, tensor: int
) -> None:
    mesh = Mesh(data=data, pipeline=pipeline, context=context, tensor=tensor, expert=context * tensor)
    for axis in AXES:
        groups = mesh.groups(axis)
        assert sorted(rank for group in groups for rank in group) == list(range(mesh.world_size))
        assert {len(group) for group in groups} == {mesh.size(axis)}
        for rank in range(mesh.world_size):
            assert mesh.group_of(rank, axis)[mesh.coordinate(rank, axis)] == rank


@given(sizes, sizes, sizes, sizes)
def test_coordinates_name_a_rank(data: int, pipeline: int, context: int, tensor: int) -> None:
    mesh = Mesh(data=data, pipeline=pipeline, context=context, tensor=tensor)
    axes = [axis for axis in AXES if axis != "expert"]
    places = {tuple(mesh.coordinate(rank, axis) for axis in axes) for rank in range(mesh.world_size)}
    assert len(places) == mesh.world_size


def test_tensor_ranks_are_neighbours_and_experts_span_data_and_tensor() -> None:
    mesh = Mesh(data=2, pipeline=2, tensor=2, expert=4)
    assert mesh.groups("tensor") == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert mesh.groups("pipeline") == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert mesh.groups("data") == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert mesh.groups("expert") == [[0, 1, 4, 5], [2, 3, 6, 7]]


def test_bad_sizes_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"parallel\.expert=3"):
        Mesh(tensor=4, expert=3)
    with pytest.raises(ConfigError, match=r"parallel\.tensor=0"):
        Mesh(tensor=0)


def test_replicas_are_not_part_of_an_engines_mesh() -> None:
    assert build_mesh(ParallelConfig(data=4, tensor=2, pipeline=3)).world_size == 6


def covered(parts: list[Part]) -> list[int]:
    return [
        feature for part in parts for feature in range(part.source_start, part.source_start + part.num_loaded)
    ]


@given(st.integers(1, 4), st.integers(1, 5))
def test_even_shares_cover_each_feature_once(ranks: int, per_rank: int) -> None:
    parts = [split_even(ranks * per_rank, rank, ranks, "size")[0] for rank in range(ranks)]
    assert covered(parts) == list(range(ranks * per_rank))


def test_uneven_shares_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="intermediate_size=10 does not divide over 4"):
        split_even(10, 0, 4, "intermediate_size")


def test_merged_parts_lie_one_after_the_other_on_each_rank() -> None:
    gate, up = merge([("gate", 8), ("up", 8)], rank=1, ranks=2, what="size")
    assert (gate.start, gate.size, gate.source_start) == (0, 4, 4)
    assert (up.start, up.size, up.source_start) == (4, 4, 4)


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 3), st.sampled_from([4, 6]))
def test_each_rank_holds_the_kv_heads_of_its_query_heads(
    kv_per_rank: int, group_size: int, ranks: int, head_size: int
) -> None:
    num_kv_heads, num_heads = kv_per_rank * ranks, kv_per_rank * ranks * group_size
    for rank in range(ranks):
        query, key, value = split_qkv(num_heads, num_kv_heads, head_size, rank, ranks)
        first_head = query.source_start // head_size
        assert key.source_start // head_size == first_head // group_size
        assert (query.size, key.size) == (num_heads // ranks * head_size, kv_per_rank * head_size)
        assert (value.source_start, value.size, value.start) == (
            key.source_start,
            key.size,
            key.start + key.size,
        )


@pytest.mark.parametrize("ranks", [4, 8])
def test_more_ranks_than_kv_heads_share_a_head(ranks: int) -> None:
    num_heads, num_kv_heads = 8, 2
    shares = [share_heads(num_heads, num_kv_heads, rank, ranks) for rank in range(ranks)]
    for rank, share in enumerate(shares):
        heads = range(rank * share.num_heads, (rank + 1) * share.num_heads)
        assert {head // (num_heads // num_kv_heads) for head in heads} == {share.first_kv_head}
        assert share.num_kv_heads == 1


def test_heads_that_cannot_be_shared_are_refused() -> None:
    with pytest.raises(ValueError, match="num_attention_heads=9"):
        share_heads(9, 3, 0, 2)
    with pytest.raises(ValueError, match="num_key_value_heads=3"):
        share_heads(12, 3, 0, 4)


@given(st.integers(1, 1000), st.integers(1, 4))
def test_vocabulary_is_covered_and_equally_large_on_every_rank(vocab_size: int, ranks: int) -> None:
    parts = [split_vocabulary(vocab_size, rank, ranks)[0] for rank in range(ranks)]
    assert covered(parts) == list(range(vocab_size))
    assert len({part.size for part in parts}) == 1
    if ranks == 1:
        assert parts[0].size == vocab_size
    else:
        assert parts[0].size % 64 == 0
