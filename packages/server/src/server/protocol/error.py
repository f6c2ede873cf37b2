"""The error envelope."""

from __future__ import annotations

import msgspec


class ErrorDetail(msgspec.Struct, frozen=True, kw_only=True):
    """What went wrong."""

    message: str
    """For people."""
    type: str
    """Kind of error (`BadRequestError`, ...)."""
    param: str | None
    """Dotted name of the field at fault."""
    code: int
    """The HTTP status, in streams too."""


class ErrorBody(msgspec.Struct, frozen=True):
    """The envelope around every error."""

    error: ErrorDetail
