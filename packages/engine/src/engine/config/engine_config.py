"""The whole configuration of an engine as one frozen value; made by `resolve`, sent to every process."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

from engine.config.cache import CacheConfig
from engine.config.component import ComponentConfig
from engine.config.model import ModelConfig
from engine.config.parallel import ParallelConfig
from engine.config.scheduler import SchedulerConfig
from engine.config.settings import CompilationConfig, ObservabilityConfig, SamplingConfig
from engine.types.info import CheckpointFacts, PlatformInfo

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """Why a value is what it is."""

    key: str
    """Dotted key."""
    value: str
    """The value in use, as text."""
    given: str
    """What the configuration said (`auto`, `null`, or the value that had to change)."""
    why: str
    """One sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Everything an engine process needs, with every "auto" resolved.

    Before `resolve` it may hold "auto" and null and no facts; after it, `checkpoint` and `platform_info` are
    set and `reasons` tells what was decided.
    """

    model: ModelConfig
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    compilation: CompilationConfig = field(default_factory=CompilationConfig)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    observability: ObservabilityConfig = field(default_factory=ObservabilityConfig)
    platform: ComponentConfig = field(default_factory=ComponentConfig)
    attention: ComponentConfig = field(default_factory=ComponentConfig)
    quantization: ComponentConfig = field(default_factory=ComponentConfig)
    loader: ComponentConfig = field(default_factory=ComponentConfig)
    executor: ComponentConfig = field(default_factory=ComponentConfig)
    transport: ComponentConfig = field(default_factory=ComponentConfig)
    checkpoint: CheckpointFacts | None = None
    platform_info: PlatformInfo | None = None
    reasons: list[Reason] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    """Settings that the chosen path ignores, one sentence each; whoever starts the engine logs them."""


def resolved(value: Value | None) -> Value:
    """Return a field that `resolve` has filled; for those who only ever see a resolved configuration."""
    assert value is not None, "the configuration is resolved before anything is built from it"
    return value
