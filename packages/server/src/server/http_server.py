"""uvicorn set up for one server: bounded protocol, no signals of its own, one log, no trust in proxies."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

from server.app import build_app
from server.http_protocol import build_protocol_class
from server.listener import BACKLOG
from server.state import ServerState

CLOSE_TIMEOUT_S = 5
"""Seconds for answers that have ended to leave the process."""


class HttpServer(uvicorn.Server):
    """uvicorn without its own ideas about signals."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to whoever owns the process."""
        yield


def build_http_server(state: ServerState) -> HttpServer:
    """Return the HTTP server of a state; it serves sockets that are bound already."""
    limits = state.limits
    return HttpServer(
        uvicorn.Config(
            build_app(state),
            http=build_protocol_class(limits),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            backlog=BACKLOG,
            timeout_keep_alive=max(1, round(limits.keep_alive_timeout_s)),
            timeout_graceful_shutdown=CLOSE_TIMEOUT_S,
        )
    )
