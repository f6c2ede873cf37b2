"""The outermost layer: gives each request its id, writes it to the log and the metrics, and lets nothing
escape.

Whatever an inner layer raises becomes an answer in the envelope, or, once an answer has begun, the end of its
connection; the cause goes to the log under the request's id. Headers and query strings are never logged.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid

from engine.observability.logging import current_request_id
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.errors import as_api_error, build_error_response
from server.metrics import ServerMetrics
from server.protocol.generation import CLIENT_ID

logger = logging.getLogger(__name__)

REQUEST_ID_HEADER = "X-Request-Id"
_HEADERS_KEY = "pagoda.response_headers"


class RequestMiddleware:
    """Wraps the whole application."""

    def __init__(self, app: ASGIApp, metrics: ServerMetrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start_s = time.monotonic()
        request_id = get_client_id(Headers(scope=scope)) or uuid.uuid4().hex
        current_request_id.set(request_id)
        extra: list[tuple[bytes, bytes]] = [(b"x-request-id", request_id.encode("ascii"))]
        scope[_HEADERS_KEY] = extra
        status = 0

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), *extra]
            await send(message)

        try:
            await self._app(scope, receive, send_with_headers)
        except Exception as error:
            answer = as_api_error(error)
            if status == 0:
                await build_error_response(answer)(scope, receive, send_with_headers)
            else:
                await cut_off(scope)
        finally:
            self._record(scope, status, time.monotonic() - start_s)

    def _record(self, scope: Scope, status: int, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", "unmatched")
        if status:
            self._metrics.on_http(scope["method"], route, status, seconds)
        logger.debug("%s %s %s %.3f s", scope["method"], route, status or "gone", seconds)


def get_client_id(headers: Headers) -> str | None:
    """Return the id that a client gave its request, if it may be echoed."""
    given = headers.get(REQUEST_ID_HEADER, "")
    return given if CLIENT_ID.fullmatch(given) else None


def add_response_header(request: Request, name: str, value: str) -> None:
    """Put a header on the answer to a request, whatever it will be."""
    request.scope[_HEADERS_KEY].append((name.lower().encode("ascii"), value.encode("ascii")))


async def cut_off(scope: Scope) -> None:
    """Drop the connection of a request with whatever it has not read."""
    drop = scope.get("state", {}).get("drop_connection")
    if drop is not None:
        drop()
        # The protocol learns of it in the loop's next turn, and must before the application returns.
        await asyncio.sleep(0)
