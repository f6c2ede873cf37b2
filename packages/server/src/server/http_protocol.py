"""HTTP/1.1 with bounds: uvicorn's httptools protocol, plus limits on heads, connections and slow clients.

What is wrong before there is a request is answered here, in the same envelope as everything else, and the
connection closed. Bodies are bounded where they are read.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState as UvicornState

from server.errors import ApiError, encode_error
from server.settings import LimitsConfig


class BoundedHttpProtocol(HttpToolsProtocol):
    """One connection. Subclassed with `limits` set by `build_protocol_class`."""

    limits: LimitsConfig

    def __init__(
        self,
        config: Config,
        server_state: UvicornState,
        app_state: dict[str, Any],  # ASGI state: whatever a server puts there
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._head_bytes = 0
        self._parsed_bytes = 0
        self._is_in_head = True
        self._refusal: ApiError | None = None
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a connection, or refuse one too many."""
        super().connection_made(transport)
        if len(self.connections) > self.limits.max_connections:
            self._refuse(ApiError(503, "Too many connections are open.", headers={"Retry-After": "1"}))
            return
        self._start_head_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget a connection."""
        self._stop_head_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take bytes; those of a head are counted, however slowly they come."""
        if self.transport.is_closing():
            return
        if self._is_in_head:
            self._head_bytes += len(data)
            if self._head_timer is None:
                self._start_head_timer()
        super().data_received(data)
        # Read in one piece with a body, a head is judged by its own parts; here it has not ended yet.
        if self._is_in_head and self._head_bytes > self.limits.max_header_bytes:
            self._refuse(self._too_large())

    def on_message_begin(self) -> None:
        """Begin a request."""
        super().on_message_begin()
        self._is_in_head = True
        state: dict[str, Any] = self.scope["state"]  # ASGI state: whatever a server puts there
        state["drop_connection"] = self.transport.abort
        self._parsed_bytes = 0

    def on_url(self, url: bytes) -> None:
        """Take a piece of the target."""
        super().on_url(url)
        self._count(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header."""
        self._count(len(name) + len(value) + 4)
        if not self._is_in_head:
            # A trailer: nothing here reads one, and it must not pass for a header (host, key, id).
            return
        if len(self.headers) >= self.limits.max_headers:
            self._stop_parsing(self._too_large())
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """End the head and start the request."""
        self._stop_head_timer()
        self._is_in_head = False
        self._head_bytes = 0
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """End the request's body; the next bytes are another head."""
        self._is_in_head = True
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Answer what could not be parsed."""
        self._refuse(self._refusal or ApiError(400, "This is not a valid HTTP request."))

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection, and do not wait for a reader that has not taken its last answer."""
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            self.transport.close()

    def _unsupported_upgrade_warning(self) -> None:
        """Stay on HTTP/1.1 quietly: clients offer an upgrade as a matter of course."""

    def _count(self, num_bytes: int) -> None:
        self._parsed_bytes += num_bytes
        if self._parsed_bytes > self.limits.max_header_bytes:
            self._stop_parsing(self._too_large())

    def _stop_parsing(self, refusal: ApiError) -> None:
        self._refusal = refusal
        raise ValueError("head too large")  # the parser reports it as its own error: see send_400_response

    def _too_large(self) -> ApiError:
        return ApiError(
            431,
            f"The request's head is larger than {self.limits.max_header_bytes} bytes or has more than "
            f"{self.limits.max_headers} headers.",
        )

    def _start_head_timer(self) -> None:
        self._head_timer = self.loop.call_later(self.limits.header_timeout_s, self._on_head_timeout)

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _on_head_timeout(self) -> None:
        self._head_timer = None
        if self._head_bytes:
            self._refuse(ApiError(408, "The request's head did not arrive in time."))
        else:
            self.transport.close()

    def _refuse(self, error: ApiError) -> None:
        """Answer and close, unless the answer to another request is under way or due on this connection."""
        if self.transport.is_closing():
            return
        cycle = self.cycle
        is_in_body = not self._is_in_head and not self.pipeline
        if cycle is None or cycle.response_complete or (is_in_body and not cycle.response_started):
            body = encode_error(error)
            headers = {
                "content-type": "application/json",
                "content-length": str(len(body)),
                "connection": "close",
                **error.headers,
            }
            lines = [f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}"]
            lines += [f"{name}: {value}" for name, value in headers.items()]
            self.transport.write("\r\n".join([*lines, "", ""]).encode("ascii") + body)
        self.transport.close()


def build_protocol_class(limits: LimitsConfig) -> type[BoundedHttpProtocol]:
    """Return the protocol with these limits; uvicorn makes one per connection."""
    return type("ConfiguredHttpProtocol", (BoundedHttpProtocol,), {"limits": limits})
