"""`/health`, `/ready`, `/live`, `/version`: whether the process answers, and whether it takes work."""

from __future__ import annotations

from functools import cache
from importlib.metadata import version

from engine.types.errors import EngineError
from starlette.requests import Request
from starlette.responses import Response

from server.answering import json_response
from server.errors import RETRY_AFTER_S, ApiError
from server.protocol.status import Status, Version
from server.route import Route
from server.state import ServerStatus, get_state


async def get_health(request: Request) -> Response:
    """Answer 200 while work is taken, else 503 with the reason."""
    state = get_state(request)
    try:
        state.get_engine()
    except (ApiError, EngineError):
        is_starting = state.status is ServerStatus.STARTING
        body = Status(
            status=state.current_status.value,
            phase=state.phase if is_starting else None,
            progress=round(state.progress, 4) if is_starting else None,
        )
        return json_response(body, status=503, headers={"Retry-After": str(RETRY_AFTER_S)})
    return json_response(Status(status="ready"))


async def get_live(request: Request) -> Response:
    """Answer 200: the event loop turns."""
    return json_response(Status(status="live"))


async def get_version(request: Request) -> Response:
    """Answer with the release."""
    return json_response(Version(version=_get_version()))


@cache
def _get_version() -> str:
    return version("pagoda-server")


ROUTES = [
    Route(
        method="GET",
        path="/health",
        endpoint=get_health,
        summary="Ready for work, or why not",
        response=Status,
    ),
    Route(method="GET", path="/ready", endpoint=get_health, summary="The same as /health", response=Status),
    Route(method="GET", path="/live", endpoint=get_live, summary="The process answers", response=Status),
    Route(method="GET", path="/version", endpoint=get_version, summary="The release", response=Version),
]
