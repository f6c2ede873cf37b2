"""The core as a process of its own: `python -m engine.core.process`, started by a client.

The setup comes as msgpack over standard input, messages over two sockets. The loop takes messages in between
steps and while a step is computed, sleeps when there is nothing to do, and never blocks on a client that does
not read. The process ends with its client, on SIGTERM, on a Shutdown message, or of a failed step; its last
words say why.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import logging
import os
import select
import signal
import sys
import threading
import time
from collections import deque
from concurrent.futures import Future
from types import FrameType

import msgspec
import zmq

from engine.core import transport
from engine.core.engine_core import EngineCore, StepInFlight
from engine.core.transport import CoreSetup, MessageTooLargeError
from engine.observability import logging as log_setup
from engine.platforms.threads import configure_threads
from engine.types.errors import CheckpointError, ConfigError, EngineError, InvalidRequestError
from engine.types.runner_output import ModelRunnerOutput
from engine.types.wire import (
    AbortRequests,
    AddRequests,
    ClientToCore,
    CoreToClient,
    EngineCoreOutputs,
    EngineDead,
    EngineReady,
    Shutdown,
    StartupProgress,
    UtilityCall,
    UtilityResult,
)

logger = logging.getLogger(__name__)

EXIT_FAILED = 1
EXIT_TERMINATED = 128 + signal.SIGTERM
LAST_WORDS_S = 2.0
"""How long the last messages may take to reach the client."""
MAX_UNSENT = 64
"""Messages that wait for a client that does not read, before the core stops stepping."""
_MAX_MESSAGES_PER_DRAIN = 1024
_PARENT_POLL_S = 1.0
_PR_SET_PDEATHSIG = 1


class Terminated(BaseException):
    """SIGTERM came; not an Exception, so that no stage mistakes it for a failure of its own."""


class CoreServer:
    """The loop between the sockets and the core. Owns both sockets; runs in the main thread."""

    def __init__(self, setup: CoreSetup) -> None:
        self._context = zmq.Context()
        self._input = self._context.socket(zmq.PULL)
        self._output = self._context.socket(zmq.PUSH)
        for socket in (self._input, self._output):
            transport.configure(socket)
        self._input.connect(setup.to_core)
        self._output.connect(setup.to_client)
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poller = zmq.Poller()
        self._poller.register(self._input, zmq.POLLIN)
        self._poller.register(self._wake_fd, zmq.POLLIN)
        self._unsent: deque[bytes] = deque()
        self._progress = ("", 0.0)
        self._is_looping = False
        self._is_stopping = False
        self._is_terminated = False
        self._is_closing = False
        self._core = EngineCore(setup.config, self._report_progress, plugin_packages=setup.plugin_packages)

    def run(self) -> int:
        """Start the core and serve until told to stop; return the exit code."""
        try:
            info = self._core.start()
            # What start-up left lives as long as the process; the collector need not look at it again.
            gc.collect()
            gc.freeze()
            self._send(EngineReady(info))
            self._is_looping = True
            self._loop()
            self._core.abort_all()
            if self._core.has_work():
                self._send(self._core.take_events())
            if self._is_terminated:
                raise Terminated
        except Terminated:
            self._send(EngineDead("the engine core was stopped by SIGTERM"))
            return EXIT_TERMINATED
        except Exception as error:
            self._is_closing = True
            is_configuration = isinstance(error, ConfigError | CheckpointError)
            # What the operator can fix is told where it was asked for, not here, and needs no traceback.
            if not is_configuration:
                logger.exception("the engine core failed")
            self._send(EngineDead(_describe(error), is_configuration))
            return EXIT_FAILED
        finally:
            self._is_closing = True
            self._close()
        return 0

    def handle_sigterm(self, signum: int, frame: FrameType | None) -> None:
        """Stop: at the next turn of the loop, or at once while starting. Ending already, go on with that."""
        if self._is_terminated or self._is_closing:
            return
        self._is_terminated = True
        if not self._is_looping:
            raise Terminated
        self._is_stopping = True
        os.eventfd_write(self._wake_fd, 1)

    def _loop(self) -> None:
        core = self._core
        while not self._is_stopping:
            self._drain_input()
            self._flush()
            if self._is_stopping:
                break
            if len(self._unsent) > MAX_UNSENT or not core.has_work():
                self._wait()
                continue
            step = core.begin_step()
            self._send_outputs(core.take_events() if step is None else self._await_step(step))

    def _await_step(self, step: StepInFlight) -> EngineCoreOutputs:
        """Take messages in until the step is done, then return what it gave."""
        if not step.future.done():
            step.future.add_done_callback(self._wake)
            while not step.future.done():
                self._wait()
                self._drain_input()
        return self._core.finish_step(step)

    def _wake(self, _: Future[ModelRunnerOutput]) -> None:
        # Called from the executor's thread.
        os.eventfd_write(self._wake_fd, 1)

    def _wait(self) -> None:
        """Sleep until a message, room in the output, a finished step or a signal."""
        if self._unsent:
            self._poller.register(self._output, zmq.POLLOUT)
        elif self._output in self._poller:
            self._poller.unregister(self._output)
        ready = dict(self._poller.poll())
        if self._wake_fd in ready:
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._wake_fd)
        self._flush()

    # ---- messages in

    def _drain_input(self) -> None:
        for _ in range(_MAX_MESSAGES_PER_DRAIN):
            try:
                data = self._input.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._take(data)

    def _take(self, data: bytes) -> None:
        try:
            self._handle(transport.decode_from_client(data))
        except msgspec.DecodeError:
            self._take_malformed(data)

    def _take_malformed(self, data: bytes) -> None:
        try:
            good, bad = transport.split_requests(data)
        except msgspec.DecodeError as error:
            logger.error("a message of %d bytes was refused: %s", len(data), error)
            return
        self._core.add_requests(good)
        for request_id, message in bad.items():
            self._core.reject(request_id, message)

    def _handle(self, message: ClientToCore) -> None:
        match message:
            case AddRequests(requests=requests):
                self._core.add_requests(requests)
            case AbortRequests(request_ids=request_ids):
                self._core.abort_requests(request_ids)
            case UtilityCall():
                self._send(self._answer(message))
            case Shutdown():
                self._is_stopping = True

    def _answer(self, call: UtilityCall) -> UtilityResult:
        try:
            return UtilityResult(call.call_id, result=self._core.call(call.method))
        except InvalidRequestError as error:
            return UtilityResult(call.call_id, error=str(error))

    # ---- messages out

    def _report_progress(self, phase: str, fraction: float) -> None:
        last_phase, last_fraction = self._progress
        # Loaders report per tensor; a percent is enough to see movement.
        if phase == last_phase and fraction < 1.0 and fraction - last_fraction < 0.01:
            return
        self._progress = (phase, fraction)
        self._send(StartupProgress(phase, fraction, time.monotonic()))

    def _send_outputs(self, outputs: EngineCoreOutputs) -> None:
        try:
            self._send(outputs)
        except MessageTooLargeError as error:
            # Only logprobs grow without bound; those who asked for so many end, the others go on.
            too_large = [entry.request_id for entry in outputs.logprobs]
            too_large += [entry.request_id for entry in outputs.prompt_logprobs]
            for request_id in dict.fromkeys(too_large):
                self._core.reject(request_id, f"the logprobs asked for are too many: {error}")
            self._send(msgspec.structs.replace(outputs, logprobs=[], prompt_logprobs=[]))

    def _send(self, message: CoreToClient) -> None:
        self._unsent.append(transport.encode(message))
        self._flush()

    def _flush(self) -> None:
        with contextlib.suppress(zmq.Again):
            while self._unsent:
                self._output.send(self._unsent[0], zmq.NOBLOCK)
                self._unsent.popleft()

    def _close(self) -> None:
        """Release everything in the reverse order of its making; the last words leave first."""
        deadline_s = time.monotonic() + LAST_WORDS_S
        while self._unsent and time.monotonic() < deadline_s:
            self._output.poll(100, zmq.POLLOUT)
            self._flush()
        self._output.close(linger=int(LAST_WORDS_S * 1000))
        self._input.close()
        try:
            self._core.shutdown()
        finally:
            # Waits for the lingering messages.
            self._context.term()


def main() -> int:
    """Read the setup, tie this process to its client, serve; return the exit code."""
    faulthandler.enable()
    # Ctrl-C is the client's to drain; it stops us when it is done.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    setup = transport.decode_setup(sys.stdin.buffer.read())
    _die_with_parent(setup)
    sys.path.extend(entry for entry in setup.import_path if entry not in sys.path)
    log_setup.setup(setup.config.observability.log_level, "core")
    if setup.config.platform_info is not None:
        # Before anything imports torch: OpenMP reads its environment once.
        configure_threads(setup.config.platform_info, role="beside_frontend")
    server = CoreServer(setup)
    signal.signal(signal.SIGTERM, server.handle_sigterm)
    return server.run()


def _die_with_parent(setup: CoreSetup) -> None:
    """Make sure that this process does not outlive its client, however that ends."""
    if setup.dies_with_thread:
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    threading.Thread(target=_watch_parent, args=(setup.parent_pid,), name="parent-watch", daemon=True).start()


def _watch_parent(parent_pid: int) -> None:
    """End this process as soon as the parent is gone; also where the kernel was not asked to."""
    with contextlib.suppress(OSError):
        parent_fd = os.pidfd_open(parent_pid)
        # A reused number would be a process that is not our parent.
        if os.getppid() == parent_pid:
            select.select([parent_fd], [], [])
    while os.getppid() == parent_pid:
        time.sleep(_PARENT_POLL_S)
    os._exit(EXIT_FAILED)


def _describe(error: BaseException) -> str:
    """Return an error as one line; ours say by themselves what they are."""
    text = " ".join(str(error).split())
    if text and isinstance(error, EngineError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


if __name__ == "__main__":
    sys.exit(main())
