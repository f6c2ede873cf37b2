"""Settings of the `parallel` group: the size of each axis of the process mesh."""

from __future__ import annotations

from dataclasses import dataclass

from engine.config.ranges import PositiveInt


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelConfig:
    """Axis sizes; null is not said and resolves to 1."""

    tensor: PositiveInt | None = None
    """Ranks that share each layer."""
    pipeline: PositiveInt | None = None
    """Stages over the layers."""
    data: PositiveInt | None = None
    """Engine replicas behind one server."""
    expert: PositiveInt | None = None
    """Ranks that share the experts of a layer."""
    context: PositiveInt | None = None
    """Ranks that share a sequence."""

    @property
    def world_size(self) -> int:
        """Worker processes of one replica."""
        return (self.tensor or 1) * (self.pipeline or 1) * (self.context or 1)
