"""Settings of the `parallel` group: the size of each axis of the process mesh."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelConfig:
    """Axis sizes; null is not said and resolves to 1."""

    tensor: int | None = None
    """Ranks that share each layer."""
    pipeline: int | None = None
    """Stages over the layers."""
    data: int | None = None
    """Engine replicas behind one server."""
    expert: int | None = None
    """Ranks that share the experts of a layer."""
    context: int | None = None
    """Ranks that share a sequence."""

    @property
    def world_size(self) -> int:
        """Worker processes of one replica."""
        return (self.tensor or 1) * (self.pipeline or 1) * (self.context or 1)
