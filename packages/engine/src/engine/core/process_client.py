"""The core in a process of its own, by blocking calls: for batch jobs that must outlive it."""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections import deque
from collections.abc import Sequence

import zmq

from engine.config.engine_config import EngineConfig
from engine.core import transport
from engine.core.client_base import (
    CALL_TIMEOUT_S,
    LAST_WORDS_S,
    SHUTDOWN_S,
    AsyncCoreClient,
    CoreClient,
    build_death,
)
from engine.core.supervisor import TERMINATE_S, CoreProcess, build_setup
from engine.core.transport import SocketFolder, bind_sockets, encode_requests, unwrap_result
from engine.types.errors import EngineDeadError
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

_STOPPED = "the engine was shut down"


class ProcessClient(CoreClient):
    """The core in a process of its own, reached by blocking calls."""

    def __init__(self, config: EngineConfig, plugin_packages: Sequence[str] = ()) -> None:
        super().__init__(config, plugin_packages)
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._process: CoreProcess | None = None
        self._exit_fd = -1
        self._last_words: EngineDead | None = None
        self._outputs: deque[EngineCoreOutputs] = deque()
        self._results: dict[int, UtilityResult] = {}
        self._call_ids = itertools.count(1)
        self._info: EngineInfo | None = None
        self._is_stopped = False

    @classmethod
    def async_class(cls) -> type[AsyncCoreClient]:
        # Not at the top: an asynchronous client is of no use to most who import this one.
        from engine.core.async_process_client import AsyncProcessClient

        return AsyncProcessClient

    def start(self, on_progress: ProgressCallback | None = None) -> EngineInfo:
        self._context = zmq.Context()
        folder = SocketFolder()
        self._to_core = self._context.socket(zmq.PUSH)
        self._from_core = self._context.socket(zmq.PULL)
        bind_sockets(self._to_core, self._from_core, folder)
        self._exit_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._process = CoreProcess(folder)
        try:
            exit_fd = self._exit_fd
            setup = build_setup(self.config, folder, self.plugin_packages)
            self._process.start(setup, on_exit=lambda: os.eventfd_write(exit_fd, 1))
            while self._info is None:
                message = self._receive(None)
                if isinstance(message, StartupProgress) and on_progress is not None:
                    on_progress(message.phase, message.fraction)
        except BaseException:
            # Also Ctrl-C: a core that is half up is of no use to anybody.
            self._release()
            raise
        # Both sides hold the connection now: not even a client that is killed leaves a folder behind.
        if self._to_core.poll(1000, zmq.POLLOUT):
            folder.remove()
        return self._info

    def add_requests(self, requests: Sequence[EngineCoreRequest]) -> None:
        for data in encode_requests(requests):
            self._send(data)

    def abort_requests(self, request_ids: Sequence[str]) -> None:
        self._send(transport.encode(AbortRequests(list(request_ids))))

    def get_outputs(self, timeout_s: float | None = None) -> EngineCoreOutputs:
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        while not self._outputs:
            remaining_s = None if deadline_s is None else max(0.0, deadline_s - time.monotonic())
            if self._receive(remaining_s) is None:
                return EngineCoreOutputs(time.monotonic())
        return self._outputs.popleft()

    def call(self, method: str) -> bool | int | float | str | None:
        call_id = next(self._call_ids)
        self._send(transport.encode(UtilityCall(call_id, method)))
        deadline_s = time.monotonic() + CALL_TIMEOUT_S
        while call_id not in self._results:
            if self._receive(max(0.0, deadline_s - time.monotonic())) is None:
                raise TimeoutError(f"the engine core did not answer {method!r} within {CALL_TIMEOUT_S:.0f} s")
        return unwrap_result(self._results.pop(call_id))

    def shutdown(self) -> None:
        process = self._process
        if process is None or self._is_stopped:
            return
        if self.is_alive:
            with contextlib.suppress(zmq.Again):
                self._to_core.send(transport.encode(Shutdown()), zmq.NOBLOCK)
            process.has_exited.wait(SHUTDOWN_S)
        self._release()

    @property
    def is_alive(self) -> bool:
        return (
            self._info is not None
            and not self._is_stopped
            and self._last_words is None
            and self._process is not None
            and not self._process.has_exited.is_set()
        )

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    def _send(self, data: bytes) -> None:
        """Send, waiting for room while the core lives: it reads on whatever it computes."""
        while True:
            self._check_alive()
            try:
                self._to_core.send(data, zmq.NOBLOCK)
                return
            except zmq.Again:
                self._to_core.poll(100, zmq.POLLOUT)

    def _receive(self, timeout_s: float | None) -> CoreToClient | None:
        """Take in one message, or None once the time is over.

        Raises:
            EngineDeadError: the core is gone and everything it said was read.
        """
        if self._is_stopped or self._process is None:
            raise EngineDeadError(_STOPPED)
        if self._last_words is not None:
            raise build_death(self._last_words)
        poller = zmq.Poller()
        poller.register(self._from_core, zmq.POLLIN)
        poller.register(self._exit_fd, zmq.POLLIN)
        ready = dict(poller.poll(None if timeout_s is None else int(timeout_s * 1000)))
        if not ready:
            return None
        # Dead, but what it said before may be in the socket, or just about to be.
        if self._from_core not in ready and not self._from_core.poll(int(LAST_WORDS_S * 1000)):
            raise EngineDeadError(self._process.describe_exit())
        message = transport.decode_from_core(self._from_core.recv())
        match message:
            case EngineCoreOutputs():
                self._outputs.append(message)
            case UtilityResult():
                self._results[message.call_id] = message
            case EngineReady(info=info):
                self._info = info
            case EngineDead():
                # Its last word, whatever keeps the process from ending.
                self._last_words = message
                raise build_death(message)
        return message

    def _check_alive(self) -> None:
        if self._process is None or self._is_stopped:
            raise EngineDeadError(_STOPPED)
        if self._last_words is not None:
            raise build_death(self._last_words)
        if self._process.has_exited.is_set():
            self._read_last_words()
            if self._last_words is not None:
                raise build_death(self._last_words)
            raise EngineDeadError(self._process.describe_exit())

    def _read_last_words(self) -> None:
        """Take in what a dead core said, so that a caller who only sends learns the cause too."""
        with contextlib.suppress(EngineDeadError):
            while self._receive(LAST_WORDS_S) is not None:
                pass

    def _release(self) -> None:
        """Process first, then sockets, then the folder they lived in."""
        process, context = self._process, self._context
        assert process is not None
        assert context is not None
        self._is_stopped = True
        if process.pid is not None and not process.has_exited.is_set():
            process.terminate()
            process.has_exited.wait(TERMINATE_S)
        process.close()
        self._to_core.close()
        self._from_core.close()
        context.term()
        os.close(self._exit_fd)
