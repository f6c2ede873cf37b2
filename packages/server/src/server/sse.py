"""Answers while the client listens: streams of server-sent events, and work that ends when the client goes.

A stream's headers go out with its first event, so that what is refused before that has a status of its own;
a keep-alive comment may come first where it is switched on. After the headers an error is an event, and no
`[DONE]` follows it. A reader that does not read holds back its own stream only, and is dropped after a while.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Coroutine
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from server.errors import as_api_error, encode_error
from server.middleware.requests import cut_off
from server.state import get_state

logger = logging.getLogger(__name__)

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"

T = TypeVar("T")

_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class _ReaderStalledError(Exception):
    """The client does not read."""


class EventStream(Response):
    """A stream whose first event is there already; made by `open_stream`."""

    def __init__(
        self, events: _Events, first: bytes, gone: asyncio.Task[None], send_timeout_s: float
    ) -> None:
        self.status_code = 200
        self.background = None
        self.raw_headers = list(_HEADERS)
        self._events = events
        self._first = first
        self._gone = gone
        self._send_timeout_s = send_timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream to its end, or until the client goes or stops reading."""
        sender = asyncio.ensure_future(self._send_all(send))
        try:
            await asyncio.wait({sender, self._gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._gone.cancel()
            sender.cancel()
            await asyncio.gather(sender, self._gone, return_exceptions=True)
            await self._events.close()
        if sender.cancelled():
            return
        error = sender.exception()
        if isinstance(error, _ReaderStalledError):
            logger.info("a stream was not read for %g s and is dropped", self._send_timeout_s)
            await cut_off(scope)
        elif error is not None:
            raise error

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        event = self._first
        while event:
            await self._send(send, event)
            try:
                event = await self._events.get()
            except Exception as error:
                await self._send(send, b"data: " + encode_error(as_api_error(error)) + b"\n\n")
                break
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send(self, send: Send, event: bytes) -> None:
        try:
            async with asyncio.timeout(self._send_timeout_s):
                await send({"type": "http.response.body", "body": event, "more_body": True})
        except TimeoutError:
            raise _ReaderStalledError from None


class _Events:
    """Events of a generator one by one, or a keep-alive where none comes in time."""

    def __init__(self, source: AsyncGenerator[bytes], keep_alive_s: float) -> None:
        self._source = source
        self._keep_alive_s = keep_alive_s
        self._pending: asyncio.Task[bytes] | None = None

    async def get(self) -> bytes:
        """Return the next event; empty at the end."""
        if self._keep_alive_s <= 0:
            return await anext(self._source, b"")
        if self._pending is None:
            self._pending = asyncio.ensure_future(anext(self._source, b""))
        done, _ = await asyncio.wait({self._pending}, timeout=self._keep_alive_s)
        if not done:
            return KEEP_ALIVE
        event, self._pending = self._pending, None
        return event.result()

    async def close(self) -> None:
        """End the generator wherever it stands."""
        if self._pending is not None:
            self._pending.cancel()
            await asyncio.gather(self._pending, return_exceptions=True)
        await self._source.aclose()


async def open_stream(request: Request, source: AsyncGenerator[bytes]) -> Response:
    """Return a stream of these events once the first is there.

    Raises:
        ClientDisconnect: the client is gone; the generator is closed.
        Exception: whatever the generator raised before its first event.
    """
    settings, limits = get_state(request).settings, get_state(request).limits
    events = _Events(source, settings.sse_keep_alive_s)
    gone = asyncio.ensure_future(_wait_gone(request))
    try:
        first = await _race(events.get(), gone)
    except BaseException:
        gone.cancel()
        await events.close()
        raise
    return EventStream(events, first, gone, limits.send_timeout_s)


async def run_unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Return what the work returns; cancel it if the client goes first.

    Raises:
        ClientDisconnect: the client is gone.
    """
    gone = asyncio.ensure_future(_wait_gone(request))
    try:
        return await _race(work, gone)
    finally:
        gone.cancel()


async def _race(work: Coroutine[Any, Any, T], gone: asyncio.Task[None]) -> T:
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        if not task.done():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
    if task.cancelled():
        raise ClientDisconnect
    return task.result()


async def _wait_gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
