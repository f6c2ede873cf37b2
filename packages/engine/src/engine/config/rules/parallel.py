"""How the model is split, and whether an executor can run that many workers."""

from __future__ import annotations

from collections.abc import Iterable

from engine.config.component import ComponentConfig
from engine.config.compose import Composition
from engine.config.model_shape import ModelShape
from engine.config.parallel import ParallelConfig
from engine.config.rules.choice import get_option
from engine.config.rules.record import Record
from engine.types.errors import ConfigError

_AXES = ("tensor", "pipeline", "data", "expert", "context")


def resolve_parallel(given: ParallelConfig, shape: ModelShape, record: Record) -> ParallelConfig:
    """Return the size of every axis, each one that the model can be split by."""
    sizes: dict[str, int] = {}
    for axis in _AXES:
        value = getattr(given, axis)
        sizes[axis] = value or 1
        if value is None:
            record.decide(f"parallel.{axis}", 1, None, "not asked for")
    tensor = sizes["tensor"]
    if not _splits(shape, tensor):
        fitting = [size for size in range(1, shape.num_heads + 1) if _splits(shape, size)]
        raise ConfigError(
            f"parallel.tensor={tensor} (+tp) does not divide the model: {shape.num_heads} heads, "
            f"{shape.num_kv_heads} KV heads, feed-forward width {shape.intermediate_size}; sizes that work: "
            f"{', '.join(map(str, _nearest_sizes(fitting, tensor)))}.",
            key="parallel.tensor",
        )
    if sizes["expert"] > 1 and not shape.num_experts:
        raise ConfigError(
            f"parallel.expert={sizes['expert']} (+ep), but the model has no experts; leave it out.",
            key="parallel.expert",
        )
    if sizes["pipeline"] > shape.num_layers:
        raise ConfigError(
            f"parallel.pipeline={sizes['pipeline']} (+pp) is more than the model has layers; use at most "
            f"{shape.num_layers}.",
            key="parallel.pipeline",
        )
    return ParallelConfig(**sizes)


def resolve_executor(composition: Composition, parallel: ParallelConfig, record: Record) -> ComponentConfig:
    """Return an executor that runs as many workers as the axes ask for."""
    given = composition.engine.executor.option
    limits = _worker_limits(composition)
    workers = parallel.world_size * (parallel.data or 1) * (parallel.expert or 1)
    candidates = sorted(limits, key=limits.__getitem__) if given == "auto" else [given]
    fitting = [name for name in candidates if limits.get(name, 0) >= workers]
    if not fitting:
        axes = ", ".join(f"parallel.{axis}={size}" for axis in _AXES if (size := getattr(parallel, axis)) > 1)
        most = max((limits.get(name, 0) for name in candidates), default=0)
        raise ConfigError(
            f"{axes} needs {workers} workers, but executor={' or '.join(candidates)} runs at most {most}; "
            f"set the sizes so that their product is at most {most}.",
            key="executor",
        )
    if given != "auto":
        return composition.engine.executor
    name = fitting[0]
    record.decide("executor", name, "auto", f"the smallest that runs {workers} worker(s)")
    return get_option(composition, "executor", name)


def _worker_limits(composition: Composition) -> dict[str, int]:
    declared = composition.capabilities.get("executor", {})
    return {name: int(limits["max_workers"]) for name, limits in declared.items()}


def _splits(shape: ModelShape, size: int) -> bool:
    # With more ranks than KV heads, each KV head is held by several ranks.
    kv_fits = shape.num_kv_heads % size == 0 or size % shape.num_kv_heads == 0
    return shape.num_heads % size == 0 and kv_fits and shape.intermediate_size % size == 0


def _nearest_sizes(sizes: Iterable[int], wanted: int) -> list[int]:
    return sorted(sorted(sizes, key=lambda size: (abs(size - wanted), size))[:4])
