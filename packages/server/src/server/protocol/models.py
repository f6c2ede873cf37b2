"""`/v1/models`: what is served."""

from __future__ import annotations

import msgspec


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """One name under which the model is served."""

    id: str
    object: str = "model"
    created: int
    owned_by: str = "pagoda"
    root: str
    """The first of its names."""
    parent: str | None = None
    max_model_len: int
    """Most tokens of prompt and answer together."""


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    """Every name."""

    object: str = "list"
    data: list[ModelCard]
