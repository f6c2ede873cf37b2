"""A route as data: what the router needs, and what the API description says of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

Endpoint = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One method on one path."""

    method: str
    path: str
    endpoint: Endpoint
    """Takes the raw request; reads, decodes and answers by itself."""
    summary: str
    request: type | None = None
    """Struct of the body."""
    response: type | None = None
    """Struct of the answer; None where it is no JSON."""
    media_type: str = "application/json"
    """Of the answer."""
    can_stream: bool = False
    """Answers with server-sent events where the body says `stream`."""
