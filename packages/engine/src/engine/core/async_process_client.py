"""The core in a process of its own, from an event loop: what a server uses."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Sequence

import zmq
import zmq.asyncio

from engine.config.engine_config import EngineConfig
from engine.core import transport
from engine.core.client_base import CALL_TIMEOUT_S, LAST_WORDS_S, SHUTDOWN_S, AsyncCoreClient, build_death
from engine.core.supervisor import TERMINATE_S, CoreProcess, build_setup
from engine.core.transport import SocketFolder, bind_sockets, encode_requests, unwrap_result
from engine.types.errors import EngineDeadError, QueueFullError
from engine.types.info import EngineInfo
from engine.types.progress import ProgressCallback
from engine.types.wire import (
    AbortRequests,
    CoreToClient,
    EngineCoreOutputs,
    EngineCoreRequest,
    EngineDead,
    EngineReady,
    Shutdown,
    StartupProgress,
    UtilityCall,
    UtilityResult,
)

MAX_UNREAD_OUTPUTS = 1024
"""Outputs held for a consumer that does not read; beyond, the core is left to wait."""
_RETRY_SEND_S = 0.01
_STOPPED = "the engine was shut down"


class AsyncProcessClient(AsyncCoreClient):
    """The core in a process of its own, reached from an event loop.

    One task reads the socket and hands messages to whom they belong; a thread of `CoreProcess` reports the
    end of the process, so that waiters are released at once.
    """

    def __init__(self, config: EngineConfig, plugin_packages: Sequence[str] = ()) -> None:
        super().__init__(config, plugin_packages)
        self._process: CoreProcess | None = None
        self._reader: asyncio.Task[None] | None = None
        self._on_progress: ProgressCallback | None = None
        self._last_words: EngineDead | None = None
        self._death: EngineDeadError | None = None
        self._info: EngineInfo | None = None
        self._calls: dict[int, asyncio.Future[UtilityResult]] = {}
        self._call_ids = itertools.count(1)
        self._unsent_aborts: list[str] = []
        self._is_stopping = False

    async def start(self, on_progress: ProgressCallback | None = None) -> EngineInfo:
        self._on_progress = on_progress
        self._loop = asyncio.get_running_loop()
        self._exited = asyncio.Event()
        self._ready: asyncio.Future[EngineInfo] = self._loop.create_future()
        # None stands for the end; it stays in the queue for whoever asks next.
        self._outputs: asyncio.Queue[EngineCoreOutputs | None] = asyncio.Queue(MAX_UNREAD_OUTPUTS)
        self._context = zmq.Context()
        folder = SocketFolder()
        self._to_core = self._context.socket(zmq.PUSH)
        self._from_core = zmq.asyncio.Socket(self._context, zmq.PULL)
        bind_sockets(self._to_core, self._from_core, folder)
        self._process = CoreProcess(folder)
        try:
            self._process.start(build_setup(self.config, folder, self.plugin_packages), self._report_exit)
            self._reader = asyncio.create_task(self._read(), name="core-reader")
            self._info = await self._ready
        except BaseException:
            # Also cancellation: a core that is half up is of no use to anybody.
            self._process.kill()
            await self._release()
            raise
        # Both sides hold the connection now: not even a client that is killed leaves a folder behind.
        if self._to_core.poll(0, zmq.POLLOUT):
            folder.remove()
        return self._info

    def add_requests(self, requests: Sequence[EngineCoreRequest]) -> None:
        self._check_alive()
        for data in encode_requests(requests):
            try:
                self._to_core.send(data, zmq.NOBLOCK)
            except zmq.Again:
                raise QueueFullError("the engine core does not take requests at the moment.") from None

    def abort_requests(self, request_ids: Sequence[str]) -> None:
        if self.is_alive and request_ids:
            self._unsent_aborts.extend(request_ids)
            self._send_aborts()

    async def get_outputs(self) -> EngineCoreOutputs:
        self._check_started()
        outputs = await self._outputs.get()
        if outputs is None:
            self._outputs.put_nowait(None)
            assert self._death is not None
            raise self._death
        return outputs

    async def call(self, method: str) -> bool | int | float | str | None:
        self._check_alive()
        call_id = next(self._call_ids)
        answer: asyncio.Future[UtilityResult] = self._loop.create_future()
        self._calls[call_id] = answer
        try:
            self._to_core.send(transport.encode(UtilityCall(call_id, method)), zmq.NOBLOCK)
            return unwrap_result(await asyncio.wait_for(answer, CALL_TIMEOUT_S))
        except (TimeoutError, zmq.Again):
            raise TimeoutError(
                f"the engine core did not answer {method!r} within {CALL_TIMEOUT_S:.0f} s"
            ) from None
        finally:
            del self._calls[call_id]

    async def shutdown(self) -> None:
        process = self._process
        if process is None or self._is_stopping:
            return
        was_alive, self._is_stopping = self.is_alive, True
        if was_alive:
            with contextlib.suppress(zmq.Again):
                self._to_core.send(transport.encode(Shutdown()), zmq.NOBLOCK)
            await self._wait_exited(SHUTDOWN_S)
        await self._release()

    @property
    def is_alive(self) -> bool:
        return self._info is not None and self._death is None and not self._is_stopping

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    # ---- reading

    async def _read(self) -> None:
        """Hand out messages until the core said its last word, or is gone and all was read."""
        exited: asyncio.Future[bool] = asyncio.ensure_future(self._exited.wait())
        receiving: asyncio.Future[bytes] | None = None
        try:
            while self._last_words is None:
                if receiving is None:
                    receiving = asyncio.ensure_future(self._from_core.recv())
                waiting: tuple[asyncio.Future[bytes] | asyncio.Future[bool], ...] = (receiving, exited)
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                if not receiving.done():
                    # Dead, but what it said before may just be on its way through the socket.
                    await asyncio.wait({receiving}, timeout=LAST_WORDS_S)
                    if not receiving.done():
                        break
                data, receiving = receiving.result(), None
                await self._dispatch(transport.decode_from_core(data))
        finally:
            exited.cancel()
            if receiving is not None:
                receiving.cancel()
            await self._die()

    async def _dispatch(self, message: CoreToClient) -> None:
        match message:
            case EngineCoreOutputs():
                await self._outputs.put(message)
            case UtilityResult(call_id=call_id):
                answer = self._calls.get(call_id)
                if answer is not None and not answer.done():
                    answer.set_result(message)
            case StartupProgress(phase=phase, fraction=fraction):
                if self._on_progress is not None:
                    self._on_progress(phase, fraction)
            case EngineReady(info=info):
                if not self._ready.done():
                    self._ready.set_result(info)
            case EngineDead():
                self._last_words = message

    async def _die(self) -> None:
        """Release everybody who waits, with the reason."""
        assert self._process is not None
        if self._is_stopping:
            self._death = EngineDeadError(_STOPPED)
        elif self._last_words is not None:
            self._death = build_death(self._last_words)
        else:
            # Joins the thread that reads the child's output, hence off the loop.
            self._death = EngineDeadError(await asyncio.to_thread(self._process.describe_exit))
        if not self._ready.done():
            self._ready.set_exception(self._death)
        for answer in self._calls.values():
            if not answer.done():
                answer.set_exception(self._death)
        await self._outputs.put(None)

    def _report_exit(self) -> None:
        # From the watching thread; the loop may be closed already at interpreter exit.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._exited.set)

    # ---- sending and ending

    def _send_aborts(self) -> None:
        """Send the aborts that are due; where the core does not read, try again soon rather than lose one."""
        if not self.is_alive or not self._unsent_aborts:
            return
        try:
            self._to_core.send(transport.encode(AbortRequests(self._unsent_aborts)), zmq.NOBLOCK)
            self._unsent_aborts = []
        except zmq.Again:
            self._loop.call_later(_RETRY_SEND_S, self._send_aborts)

    def _check_started(self) -> None:
        if self._process is None:
            raise EngineDeadError("the engine was not started")

    def _check_alive(self) -> None:
        self._check_started()
        if self._death is not None:
            raise self._death
        if self._is_stopping:
            raise EngineDeadError(_STOPPED)

    async def _wait_exited(self, timeout_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._exited.wait(), timeout_s)

    async def _release(self) -> None:
        """Process first, then the reader, sockets, and the folder they lived in."""
        process, reader = self._process, self._reader
        assert process is not None
        self._is_stopping = True
        # A start that failed early has neither process nor reader.
        if process.pid is not None:
            if not self._exited.is_set():
                process.terminate()
                await self._wait_exited(TERMINATE_S)
            if not self._exited.is_set():
                process.kill()
                await self._exited.wait()
        if reader is not None:
            # It ends by itself once the process is gone, unless nobody takes its outputs.
            await asyncio.wait({reader}, timeout=2 * LAST_WORDS_S)
            if not reader.done():
                reader.cancel()
                while not self._outputs.empty():
                    self._outputs.get_nowait()
                await asyncio.wait({reader})
        self._from_core.close()
        self._to_core.close()
        self._context.term()
        await asyncio.to_thread(process.close)
