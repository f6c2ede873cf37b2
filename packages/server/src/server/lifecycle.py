"""The life of the process: the port first, then the engine in the background, then an orderly end.

    bind - answer 503 - prepare - start the engine - READY - (signal) drain - abort the rest - close - exit 0
                                                           \\ (engine dies) 503 for a moment - exit 1

The order of the end, and why: readiness turns first, so that balancers look elsewhere while the port still
answers; running requests get their time; the engine goes before the port, so that every stream ends with an
event rather than a cut connection. A second signal skips all of that.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from typing import Any

from engine.types.errors import ConfigError, EngineDeadError
from engine.types.progress import ProgressCallback

from server.children import kill_children
from server.http_server import build_http_server
from server.listener import describe
from server.middleware.gate import is_loopback
from server.state import Engine, ServerState, ServerStatus

logger = logging.getLogger(__name__)

BuildEngine = Callable[[ProgressCallback], Engine]
"""Prepares the configuration and returns the engine, not started; runs in a thread, since it may download."""

ENGINE_STOP_TIMEOUT_S = 15.0


class ServerFailedError(Exception):
    """The server ended because something failed while it ran; the text is the root cause, one line."""


class Lifecycle:
    """Runs one server from its bound socket to its end.

    Args:
        state: shared with the routes.
        listener: bound and listening; closed here.
        build_engine: see `BuildEngine`.
    """

    def __init__(self, state: ServerState, listener: socket.socket, build_engine: BuildEngine) -> None:
        self._state = state
        self._listener = listener
        self._build_engine = build_engine
        self._engine: Engine | None = None
        self._stop = asyncio.Event()

    async def run(self) -> None:
        """Serve until a signal or a failure.

        Raises:
            ServerFailedError: the engine did not start, or died.
            ConfigError: the configuration does not fit the checkpoint or the machine.
            CheckpointError: the checkpoint cannot be used.
        """
        state = self._state
        http = build_http_server(state)
        self._watch_signals()
        serving = asyncio.create_task(http.serve(sockets=[self._listener]), name="http")
        logger.info("listening on %s", describe(self._listener))
        if not state.keys.has_keys and not is_loopback(state.settings.host):
            logger.warning(
                "server.host=%s is open to the network and no API key is set: anyone who reaches the port "
                "can use it; set PAGODA_API_KEY or server.api_key_file.",
                state.settings.host,
            )
        try:
            await self._serve_engine(serving)
        finally:
            await self._stop_engine()
            http.should_exit = True
            await asyncio.gather(serving, return_exceptions=True)
            state.close()

    async def _serve_engine(self, serving: asyncio.Task[None]) -> None:
        """Start the engine and stay until a signal, a death, or the end of the HTTP server."""
        stop = asyncio.create_task(self._stop.wait(), name="signals")
        start = asyncio.create_task(self._start(), name="start engine")
        dead: asyncio.Task[EngineDeadError] | None = None
        try:
            await asyncio.wait({start, stop, serving}, return_when=asyncio.FIRST_COMPLETED)
            if start.done():
                start.result()
                assert self._engine is not None
                dead = asyncio.create_task(self._engine.wait_dead(), name="engine death")
                await asyncio.wait({dead, stop, serving}, return_when=asyncio.FIRST_COMPLETED)
            if dead is not None and dead.done():
                await self._linger(dead.result(), stop)
            if serving.done():
                raise ServerFailedError(f"the HTTP server ended by itself: {serving.exception()!r}")
            self._state.status = ServerStatus.DRAINING
            if self._engine is not None:
                await self._drain(self._engine, dead)
        finally:
            for task in (stop, start, dead):
                if task is not None:
                    task.cancel()
            await asyncio.gather(stop, start, *([dead] if dead else []), return_exceptions=True)

    async def _start(self) -> None:
        """Prepare and start the engine.

        Raises:
            ConfigError: the configuration does not fit the checkpoint or the machine.
            CheckpointError: the checkpoint cannot be used.
            ServerFailedError: the engine died while it started.
        """
        engine = await _run_in_daemon_thread(lambda: self._build_engine(self._state.report_progress))
        self._engine = engine
        try:
            await engine.start(self._state.report_progress)
        except EngineDeadError as error:
            self._state.status = ServerStatus.DEAD
            if error.is_configuration:
                raise ConfigError(str(error)) from None
            raise ServerFailedError(f"the engine did not start: {error}") from None
        self._state.set_ready(engine)
        assert engine.info is not None
        logger.info(
            "ready: %s, %d tokens of context, %d KV cache blocks of %d tokens, %d requests at once",
            self._state.model_name,
            engine.info.max_model_len,
            engine.info.num_blocks,
            engine.info.block_size,
            engine.info.max_num_seqs,
        )

    async def _linger(self, death: EngineDeadError, stop: asyncio.Task[bool]) -> None:
        """Answer 503 for a moment, so that clients and probes see it, then fail.

        Raises:
            ServerFailedError: always.
        """
        self._state.status = ServerStatus.DEAD
        logger.error("the engine died: %s", death)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(stop), self._state.settings.exit_delay_s)
        raise ServerFailedError(f"the engine died: {death}")

    async def _drain(self, engine: Engine, dead: asyncio.Task[EngineDeadError] | None) -> None:
        """Let running requests end, as long as they may.

        Raises:
            ServerFailedError: the engine died meanwhile.
        """
        timeout_s = self._state.settings.drain_timeout_s
        logger.info("stopping: no new requests, %g s for the running ones", timeout_s)
        drain = asyncio.create_task(engine.drain(timeout_s), name="drain")
        await asyncio.wait({drain, *([dead] if dead else [])}, return_when=asyncio.FIRST_COMPLETED)
        if dead is not None and dead.done():
            drain.cancel()
            raise ServerFailedError(f"the engine died while the server was stopping: {dead.result()}")
        if not drain.result():
            logger.warning("requests still run after %g s and are cut off", timeout_s)

    async def _stop_engine(self) -> None:
        if self._engine is None:
            return
        try:
            await asyncio.wait_for(self._engine.shutdown(), ENGINE_STOP_TIMEOUT_S)
        except TimeoutError:
            logger.error("the engine did not stop within %g s", ENGINE_STOP_TIMEOUT_S)

    def _watch_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)

    def _on_signal(self, number: int) -> None:
        if self._stop.is_set():
            self._exit_now()
        # At once, not when the main task gets its turn: the next probe must see it.
        if self._state.status in (ServerStatus.STARTING, ServerStatus.READY):
            self._state.status = ServerStatus.DRAINING
        logger.info("%s received", signal.Signals(number).name)
        self._stop.set()

    def _exit_now(self) -> None:
        """Leave without another word, and take the core process along."""
        logger.warning("stopped by a second signal")
        kill_children()
        sys.stderr.flush()
        os._exit(0)


async def _run_in_daemon_thread(function: Callable[[], Engine]) -> Engine:
    """Return what a blocking function returns; it cannot keep the process from ending."""
    loop = asyncio.get_running_loop()
    result: asyncio.Future[Any] = loop.create_future()  # an Engine, or the error that stands for it

    def settle(value: Engine | None, error: BaseException | None) -> None:
        if result.cancelled():
            return
        if error is not None:
            result.set_exception(error)
        else:
            result.set_result(value)

    def work() -> None:
        value: Engine | None = None
        problem: BaseException | None = None
        try:
            value = function()
        except BaseException as error:
            problem = error
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, value, problem)

    threading.Thread(target=work, name="prepare", daemon=True).start()
    try:
        engine: Engine = await result
    except asyncio.CancelledError:
        kill_children()  # a download that runs as a process of its own would outlive this one
        raise
    return engine
