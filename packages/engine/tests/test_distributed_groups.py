"""Collectives of the fake group and of real processes agree, and groups are per thread where asked."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest
import torch
from distributed_ranks import run_ranks
from engine.config.parallel import ParallelConfig
from engine.distributed.collectives import FakeGroup
from engine.distributed.groups import destroy_groups, get_pp_group, get_tp_group, init_groups, use_groups


def test_without_groups_everything_is_a_group_of_one() -> None:
    group = get_tp_group()
    tensor = torch.ones(2)
    assert (group.rank, group.world_size, group.is_first, group.is_last) == (0, 1, True, True)
    assert group.all_reduce(tensor) is tensor
    assert group.all_gather(tensor) is tensor
    assert group.broadcast(tensor) is tensor
    group.barrier()


def test_fake_ranks_trade_tensors() -> None:
    def body(rank: int) -> tuple[torch.Tensor, ...]:
        group = get_tp_group()
        own = torch.tensor([float(rank), 10.0 * rank])
        group.barrier()
        return (
            group.all_reduce(own.clone()),
            group.all_gather(own),
            group.broadcast(own.clone(), source=1),
        )

    for result in run_ranks(3, body):
        assert isinstance(result, tuple)
        total, gathered, sent = result
        assert total.tolist() == [3.0, 30.0]
        assert gathered.tolist() == [0.0, 0.0, 1.0, 10.0, 2.0, 20.0]
        assert sent.tolist() == [1.0, 10.0]


def test_a_lone_fake_rank_returns_its_summand() -> None:
    tensors = [torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 4.0]])]
    groups = [FakeGroup(rank, 2) for rank in range(2)]
    assert sum(group.all_reduce(t) for group, t in zip(groups, tensors, strict=True)).tolist() == [[4.0, 6.0]]
    gathered = [group.all_gather(t) for group, t in zip(groups, tensors, strict=True)]
    assert sum(gathered).tolist() == [[1.0, 2.0, 3.0, 4.0]]
    assert groups[0].broadcast(tensors[0]) is tensors[0]


def test_groups_in_use_are_seen_on_their_thread_only() -> None:
    seen: list[int] = []
    with use_groups(FakeGroup(1, 4)):
        thread = threading.Thread(target=lambda: seen.append(get_tp_group().world_size))
        thread.start()
        thread.join()
        assert get_tp_group().world_size == 4
        assert get_pp_group().world_size == 1
    assert seen == [1]
    assert get_tp_group().world_size == 1


def test_an_unknown_axis_is_refused() -> None:
    with pytest.raises(ValueError, match="axis='colour'"), use_groups(FakeGroup(0, 2, axis="colour")):
        pass


def test_several_ranks_need_a_meeting_place() -> None:
    with pytest.raises(ValueError, match="init_method=None: 2 ranks"):
        init_groups(ParallelConfig(tensor=2), 0)
    init_groups(ParallelConfig(), 0)
    destroy_groups()
    destroy_groups()


def test_real_processes_agree_with_the_fake_group(tmp_path: Path) -> None:
    code = textwrap.dedent(
        """
        import sys, torch
        from engine.config.parallel import ParallelConfig
        from engine.distributed.groups import destroy_groups, get_pp_group, get_tp_group, init_groups

        rank = int(sys.argv[1])
        init_groups(ParallelConfig(tensor=2), rank, init_method=f"file://{sys.argv[2]}")
        group = get_tp_group()
        assert (group.rank, group.world_size) == (rank, 2)
        assert get_pp_group().world_size == 1
        own = torch.tensor([float(rank), 10.0])
        group.barrier()
        assert group.all_reduce(own.clone()).tolist() == [1.0, 20.0]
        assert group.all_gather(own).tolist() == [0.0, 10.0, 1.0, 10.0]
        assert group.broadcast(own.clone(), source=1).tolist() == [1.0, 10.0]
        destroy_groups()
        assert get_tp_group().world_size == 1
        """
    )
    meeting_place = str(tmp_path / "ranks")
    ranks = [
        subprocess.Popen([sys.executable, "-c", code, str(rank), meeting_place], stderr=subprocess.PIPE)
        for rank in range(2)
    ]
    results = [(rank.communicate(timeout=120)[1].decode(), rank.returncode) for rank in ranks]
    assert [returncode for _, returncode in results] == [0, 0], results
