"""Settings of the smaller groups: compilation, sampling, observability."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CompilationConfig:
    """How a forward pass runs."""

    mode: str = "auto"
    """`auto` or `eager`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingConfig:
    """Limits and defaults of sampling."""

    generation_config: str = "auto"
    """`auto` takes defaults (temperature, top_p, ...) from the checkpoint, `none` leaves the API's own."""
    max_logprobs: int = 20
    """Most candidates per position a request may ask for; -1 is no limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservabilityConfig:
    """Logs."""

    log_level: str = "info"
    """`debug`, `info`, `warning` or `error`."""
    log_stats_interval_s: float = 10.0
    """Seconds between lines of statistics while requests run; 0 is never."""
