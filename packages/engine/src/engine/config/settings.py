"""Settings of the smaller groups: compilation, sampling, observability."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from msgspec import Meta

from engine.config.ranges import NonNegativeFloat


@dataclass(frozen=True, slots=True, kw_only=True)
class CompilationConfig:
    """How a forward pass runs."""

    mode: Literal["auto", "eager"] = "auto"
    """`auto` or `eager`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingConfig:
    """Limits and defaults of sampling."""

    generation_config: Literal["auto", "none"] = "auto"
    """`auto` takes defaults (temperature, top_p, ...) from the checkpoint, `none` leaves the API's own."""
    max_logprobs: Annotated[int, Meta(ge=-1)] = 20
    """Most candidates per position a request may ask for; -1 is no limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservabilityConfig:
    """Logs."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """`debug`, `info`, `warning` or `error`."""
    log_stats_interval_s: NonNegativeFloat = 10.0
    """Seconds between lines of statistics while requests run; 0 is never."""
