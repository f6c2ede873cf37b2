"""What an attention backend can do, as data: stated in its YAML, compared with the class by a test."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionCapabilities:
    """Limits of one backend; `resolve` and the layers read only these."""

    platforms: list[str]
    dtypes: list[str]
    head_sizes: list[int] = field(default_factory=list)
    """Empty: any multiple of 8."""
    block_sizes: list[int] = field(default_factory=list)
    """Empty: any."""
    sliding_window: bool = False
    soft_cap: bool = False
    sinks: bool = False
    encoder_only: bool = False
    """Bidirectional attention without a cache."""
    priority: int = 0
    """Among backends that fit, the highest wins."""
