"""Which attention option fits: declared capabilities against what a model and platform need, purely.

Reads capabilities as data, so that it runs without torch and before a byte of the model is loaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.types.attention import AttentionCapabilities
from engine.types.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionOption:
    """One option of the attention group."""

    name: str
    target: str
    """Dotted name of the backend class."""
    capabilities: AttentionCapabilities


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionNeeds:
    """What a backend must be able to do for this model on this platform."""

    platform: str
    dtype: str
    head_size: int
    block_size: int | None = None
    """Tokens per block; None where the backend may still choose."""
    sliding_window: bool = False
    soft_cap: bool = False
    sinks: bool = False
    encoder_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionChoice:
    """The backend that fits best, and why each of the others does not."""

    option: AttentionOption
    refused: dict[str, str]
    """Reason by option name; a fitting option of lower priority is not in it."""


def find_refusal(capabilities: AttentionCapabilities, needs: AttentionNeeds) -> str | None:
    """Return why a backend cannot serve these needs, as one phrase; None where it can."""
    reasons: list[str] = []
    if needs.platform not in capabilities.platforms:
        reasons.append(f"runs on {_either(capabilities.platforms)}, not {needs.platform}")
    if needs.dtype not in capabilities.dtypes:
        reasons.append(f"computes in {_either(capabilities.dtypes)}, not {needs.dtype}")
    if capabilities.head_sizes and needs.head_size not in capabilities.head_sizes:
        reasons.append(f"has head sizes {_either(capabilities.head_sizes)}, not {needs.head_size}")
    if not capabilities.head_sizes and needs.head_size % 8:
        reasons.append(f"needs a head size that is a multiple of 8, not {needs.head_size}")
    if needs.block_size and capabilities.block_sizes and needs.block_size not in capabilities.block_sizes:
        reasons.append(f"has block sizes {_either(capabilities.block_sizes)}, not {needs.block_size}")
    for name in ("sliding_window", "soft_cap", "sinks", "encoder_only"):
        if getattr(needs, name) and not getattr(capabilities, name):
            reasons.append(f"lacks {name}")
    return "; ".join(reasons) or None


def choose_attention(options: Sequence[AttentionOption], needs: AttentionNeeds) -> AttentionChoice:
    """Return the fitting option of the highest priority (the first by name among equals).

    Raises:
        ConfigError: none fits; the message gives each option's reason.
    """
    refused: dict[str, str] = {}
    fitting: list[AttentionOption] = []
    for option in sorted(options, key=lambda option: (-option.capabilities.priority, option.name)):
        reason = find_refusal(option.capabilities, needs)
        if reason is None:
            fitting.append(option)
        else:
            refused[option.name] = reason
    if not fitting:
        listed = "; ".join(f"{name} {reason}" for name, reason in refused.items()) or "there is no option"
        raise ConfigError(
            f"attention='auto': no backend fits head_size={needs.head_size}, dtype={needs.dtype}, "
            f"block_size={needs.block_size} on {needs.platform}: {listed}. "
            "Change model.dtype or cache.block_size.",
            key="attention",
        )
    return AttentionChoice(option=fitting[0], refused=refused)


def _either(values: Sequence[object]) -> str:
    return " or ".join(str(value) for value in values) or "nothing"
