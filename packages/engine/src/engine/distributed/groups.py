"""The process groups of this worker, one per mesh axis: one of the two sanctioned globals.

`init_groups` and `destroy_groups` bracket a worker's life. Without them every axis is a group of one, so that
layers can be built and tested alone; `use_groups` puts others in place for a block of code on one thread.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from datetime import timedelta

import torch.distributed as dist

from engine.config.parallel import ParallelConfig
from engine.distributed.collectives import FakeGroup, GroupCoordinator, TorchGroup
from engine.distributed.mesh import AXES, Axis, build_mesh

__all__ = [
    "FakeGroup",
    "GroupCoordinator",
    "destroy_groups",
    "get_cp_group",
    "get_ep_group",
    "get_group",
    "get_pp_group",
    "get_tp_group",
    "init_groups",
    "use_groups",
]

Groups = dict[Axis, GroupCoordinator]

# A rank that waits this long for another has lost it.
_TIMEOUT = timedelta(minutes=10)

_groups: Groups = {}
_override: ContextVar[Groups | None] = ContextVar("groups", default=None)


def get_group(axis: Axis) -> GroupCoordinator:
    """Return this rank's group of an axis; a group of one where none was made."""
    override = _override.get()
    if override is not None and axis in override:
        return override[axis]
    return _groups.get(axis) or TorchGroup(axis, 0, [0], None)


def get_tp_group() -> GroupCoordinator:
    """Return the tensor-parallel group: ranks that share each layer."""
    return get_group("tensor")


def get_pp_group() -> GroupCoordinator:
    """Return the pipeline group: the stages over the layers."""
    return get_group("pipeline")


def get_ep_group() -> GroupCoordinator:
    """Return the expert group: ranks that share the experts of a layer."""
    return get_group("expert")


def get_cp_group() -> GroupCoordinator:
    """Return the context group: ranks that share a sequence."""
    return get_group("context")


def init_groups(
    parallel: ParallelConfig,
    rank: int = 0,
    *,
    backend: str = "gloo",
    init_method: str | None = None,
) -> None:
    """Join the group of every axis.

    A world of one starts no communication. Every rank of the world calls this at the same time.

    Args:
        backend: torch.distributed's name (`Platform.collective_backend`).
        init_method: where the ranks meet (`tcp://host:port` or `file:///path`); needed for more than one.

    Raises:
        ValueError: there are several ranks and no meeting place.
    """
    mesh = build_mesh(parallel)
    destroy_groups()
    if mesh.world_size == 1:
        return
    if init_method is None:
        raise ValueError(
            f"init_method=None: {mesh.world_size} ranks need a meeting place, for example tcp://127.0.0.1:29500."
        )
    dist.init_process_group(
        backend, init_method=init_method, rank=rank, world_size=mesh.world_size, timeout=_TIMEOUT
    )
    for axis in AXES:
        # Every rank creates every group, in the same order: torch.distributed counts on it.
        for ranks in mesh.groups(axis):
            process_group: dist.ProcessGroup | None = None
            if len(ranks) > 1:
                process_group = dist.new_group(ranks, backend=backend, timeout=_TIMEOUT)
            if rank in ranks:
                _groups[axis] = TorchGroup(axis, ranks.index(rank), ranks, process_group)


def destroy_groups() -> None:
    """Leave every group; safe to call twice and without `init_groups`."""
    had_groups = bool(_groups)
    for group in reversed(_groups.values()):
        group.destroy()
    _groups.clear()
    if had_groups and dist.is_initialized():
        dist.destroy_process_group()


@contextlib.contextmanager
def use_groups(*groups: GroupCoordinator) -> Iterator[None]:
    """Let these groups stand for their axes within the block, on this thread only."""
    token = _override.set({_axis(group.axis): group for group in groups})
    try:
        yield
    finally:
        _override.reset(token)


def _axis(name: str) -> Axis:
    for axis in AXES:
        if axis == name:
            return axis
    raise ValueError(f"axis={name!r} is no mesh axis; use one of {', '.join(AXES)}.")
