"""The process mesh as arithmetic: a rank's place on each axis, and which ranks share a group.

Knows integers only. Layout, slowest axis first: data, pipeline, context, tensor; so the ranks that talk most
(tensor) are neighbours. The expert axis cuts across: within one pipeline stage the (data, context, tensor)
ranks in order are cut into runs of `expert`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from engine.config.parallel import ParallelConfig
from engine.types.errors import ConfigError

Axis = Literal["data", "pipeline", "context", "tensor", "expert"]
AXES: tuple[Axis, ...] = ("data", "pipeline", "context", "tensor", "expert")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """Sizes of the axes."""

    data: int = 1
    pipeline: int = 1
    context: int = 1
    tensor: int = 1
    expert: int = 1

    def __post_init__(self) -> None:
        for axis in AXES:
            if self.size(axis) < 1:
                raise ConfigError(
                    f"parallel.{axis}={self.size(axis)!r} must be at least 1.", key=f"parallel.{axis}"
                )
        if self._stage_size % self.expert:
            raise ConfigError(
                f"parallel.expert={self.expert} must divide data x context x tensor = {self._stage_size}.",
                key="parallel.expert",
            )

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self._stage_size * self.pipeline

    def size(self, axis: Axis) -> int:
        """Return how many ranks share a group of this axis."""
        return {
            "data": self.data,
            "pipeline": self.pipeline,
            "context": self.context,
            "tensor": self.tensor,
            "expert": self.expert,
        }[axis]

    def coordinate(self, rank: int, axis: Axis) -> int:
        """Return a rank's index within its group of this axis."""
        return self.group_of(rank, axis).index(rank)

    def group_of(self, rank: int, axis: Axis) -> list[int]:
        """Return the ranks of the group that `rank` belongs to, in order."""
        return next(group for group in self.groups(axis) if rank in group)

    def groups(self, axis: Axis) -> list[list[int]]:
        """Return every group of an axis: a partition of all ranks."""
        if axis == "expert":
            return self._expert_groups()
        by_place: dict[tuple[int, ...], list[int]] = {}
        position = AXES.index(axis)
        for rank in range(self.world_size):
            place = self._place(rank)
            by_place.setdefault(place[:position] + place[position + 1 :], []).append(rank)
        return list(by_place.values())

    @property
    def _stage_size(self) -> int:
        return self.data * self.context * self.tensor

    def _place(self, rank: int) -> tuple[int, int, int, int]:
        rest, tensor = divmod(rank, self.tensor)
        rest, context = divmod(rest, self.context)
        data, pipeline = divmod(rest, self.pipeline)
        return data, pipeline, context, tensor

    def _expert_groups(self) -> list[list[int]]:
        stages: dict[int, list[int]] = {}
        for rank in range(self.world_size):
            stages.setdefault(self._place(rank)[1], []).append(rank)
        return [
            ranks[start : start + self.expert]
            for ranks in stages.values()
            for start in range(0, len(ranks), self.expert)
        ]


def build_mesh(parallel: ParallelConfig) -> Mesh:
    """Return the mesh of one engine replica: the data axis routes requests and joins no group here."""
    return Mesh(
        pipeline=parallel.pipeline or 1,
        context=parallel.context or 1,
        tensor=parallel.tensor or 1,
        expert=parallel.expert or 1,
    )
