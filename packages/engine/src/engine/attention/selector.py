"""Refusing a backend that cannot serve a layer.

The comparison itself is `engine.config.attention_choice`: pure, on declared capabilities. Here it meets what
only the built model knows: each layer's own needs.
"""

from __future__ import annotations

from engine.attention.backend import AttentionBackend
from engine.config.attention_choice import AttentionNeeds, find_refusal
from engine.types.errors import ConfigError


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
