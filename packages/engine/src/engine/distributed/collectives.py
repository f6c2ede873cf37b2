"""What the ranks of one group can do together.

A group of one does nothing and costs nothing. `TorchGroup` goes through torch.distributed (gloo on the CPU,
nccl on GPUs); `FakeGroup` stands for several ranks within one process, for tests.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod

import torch
import torch.distributed as dist


class GroupCoordinator(ABC):
    """One rank's view of its group. Every rank of the group makes the same calls in the same order.

    Attributes:
        axis: name of the mesh axis.
        rank: this rank's index within the group.
        world_size: number of ranks in the group.
    """

    def __init__(self, axis: str, rank: int, world_size: int) -> None:
        self.axis = axis
        self.rank = rank
        self.world_size = world_size

    @property
    def is_first(self) -> bool:
        """True on the group's rank 0."""
        return self.rank == 0

    @property
    def is_last(self) -> bool:
        """True on the group's last rank."""
        return self.rank == self.world_size - 1

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the sum over the group. Mutates: `tensor` may be the result."""
        return tensor if self.world_size == 1 else self._all_reduce(tensor)

    def all_gather(self, tensor: torch.Tensor, dim: int = -1) -> torch.Tensor:
        """Return the ranks' tensors joined along `dim`, in rank order; all have the same shape."""
        if self.world_size == 1:
            return tensor
        return torch.cat(self._all_gather(tensor.contiguous()), dim=dim)

    def broadcast(self, tensor: torch.Tensor, source: int = 0) -> torch.Tensor:
        """Return rank `source`'s tensor. Mutates: `tensor`, on the others."""
        return tensor if self.world_size == 1 else self._broadcast(tensor, source)

    def barrier(self) -> None:
        """Wait until every rank of the group is here."""
        if self.world_size > 1:
            self._barrier()

    @abstractmethod
    def destroy(self) -> None:
        """Leave the group; safe to call twice."""

    @abstractmethod
    def _all_reduce(self, tensor: torch.Tensor) -> torch.Tensor: ...

    @abstractmethod
    def _all_gather(self, tensor: torch.Tensor) -> list[torch.Tensor]: ...

    @abstractmethod
    def _broadcast(self, tensor: torch.Tensor, source: int) -> torch.Tensor: ...

    @abstractmethod
    def _barrier(self) -> None: ...


class TorchGroup(GroupCoordinator):
    """A group of processes.

    Args:
        ranks: the group's global ranks, in group order.
    """

    def __init__(
        self, axis: str, rank: int, ranks: list[int], process_group: dist.ProcessGroup | None
    ) -> None:
        super().__init__(axis, rank, len(ranks))
        self._ranks = ranks
        self._group = process_group

    def destroy(self) -> None:
        if self._group is not None:
            dist.destroy_process_group(self._group)
            self._group = None

    def _all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(tensor, group=self._group)
        return tensor

    def _all_gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        parts = [torch.empty_like(tensor) for _ in range(self.world_size)]
        dist.all_gather(parts, tensor, group=self._group)
        return parts

    def _broadcast(self, tensor: torch.Tensor, source: int) -> torch.Tensor:
        dist.broadcast(tensor, src=self._ranks[source], group=self._group)
        return tensor

    def _barrier(self) -> None:
        dist.barrier(group=self._group)


class Exchange:
    """Where fake ranks, each on a thread of its own, leave tensors for one another."""

    def __init__(self, world_size: int, timeout_s: float = 30.0) -> None:
        self._slots: list[torch.Tensor | None] = [None] * world_size
        # A rank that fails silently never arrives; the timeout turns the others' wait into an error.
        self._barrier = threading.Barrier(world_size, timeout=timeout_s)

    def swap(self, rank: int, tensor: torch.Tensor) -> list[torch.Tensor]:
        """Return what every rank gave in this round, in rank order."""
        self._slots[rank] = tensor.clone()
        self._barrier.wait()
        everyone = [part for part in self._slots if part is not None]
        # Nobody starts the next round before all have read this one.
        self._barrier.wait()
        return everyone

    def abort(self) -> None:
        """Make every rank that waits, now or later, fail at once: one of them has."""
        self._barrier.abort()


class FakeGroup(GroupCoordinator):
    """One rank of a group that exists in this process only.

    With an exchange, ranks on threads really trade tensors. Without one, each rank stays alone: a sum is the
    rank's own summand, and gathering places its part among zeros, so that the ranks' results add up to the
    true one.
    """

    def __init__(
        self, rank: int, world_size: int, *, axis: str = "tensor", exchange: Exchange | None = None
    ) -> None:
        super().__init__(axis, rank, world_size)
        self._exchange = exchange

    def destroy(self) -> None:
        """Do nothing: there is nothing to leave."""

    def _all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        if self._exchange is None:
            return tensor
        parts = self._exchange.swap(self.rank, tensor)
        total = parts[0].clone()
        for part in parts[1:]:
            total += part
        return total

    def _all_gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        if self._exchange is not None:
            return self._exchange.swap(self.rank, tensor)
        return [tensor if rank == self.rank else torch.zeros_like(tensor) for rank in range(self.world_size)]

    def _broadcast(self, tensor: torch.Tensor, source: int) -> torch.Tensor:
        if self._exchange is not None:
            tensor.copy_(self._exchange.swap(self.rank, tensor)[source])
        return tensor

    def _barrier(self) -> None:
        if self._exchange is not None:
            self._exchange.swap(self.rank, torch.empty(0))
