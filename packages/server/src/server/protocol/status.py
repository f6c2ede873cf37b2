"""`/health` and its kin, and `/version`."""

from __future__ import annotations

import msgspec


class Status(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where the server stands."""

    status: str
    """`starting`, `ready`, `draining`, `dead`, or `live`."""
    phase: str | None = None
    """While starting: what is being done."""
    progress: float | None = None
    """While starting: how far that is, 0 to 1."""


class Version(msgspec.Struct, frozen=True, kw_only=True):
    """Which release answers."""

    version: str
