"""Choosing a backend, and refusing one that was chosen by name but cannot serve a layer.

The comparison itself is `engine.config.attention_choice`: pure, on declared capabilities. Here it meets what
only the built model knows: each layer's own needs.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.attention.backend import AttentionBackend
from engine.config.attention_choice import AttentionNeeds, AttentionOption, choose_attention, find_refusal
from engine.types.errors import ConfigError


def select(
    options: Sequence[AttentionOption],
    *,
    platform: str,
    dtype: str,
    head_size: int,
    block_size: int | None = None,
    sliding_window: bool = False,
    soft_cap: bool = False,
    sinks: bool = False,
    encoder_only: bool = False,
) -> tuple[str, dict[str, str]]:
    """Return the name of the fitting backend of the highest priority, and why each other was refused.

    Raises:
        ConfigError: none fits; the message holds every reason.
    """
    needs = AttentionNeeds(
        platform=platform,
        dtype=dtype,
        head_size=head_size,
        block_size=block_size,
        sliding_window=sliding_window,
        soft_cap=soft_cap,
        sinks=sinks,
        encoder_only=encoder_only,
    )
    choice = choose_attention(options, needs)
    return choice.option.name, choice.refused


def check_backend(backend: type[AttentionBackend], needs: AttentionNeeds, layer_name: str) -> None:
    """Return if the backend can serve a layer.

    Raises:
        ConfigError: it cannot, and why.
    """
    reason = find_refusal(backend.capabilities, needs)
    if reason is not None:
        raise ConfigError(
            f"attention: backend {backend.__name__} cannot serve layer {layer_name!r}: it {reason}. "
            "Set attention=auto or choose another backend.",
            key="attention",
        )
