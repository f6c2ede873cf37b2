"""The client's grip on a core process: start it, notice its end at once, know why, leave nothing behind.

Knows processes, pipes and signals; nothing of messages.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence

from engine.config.engine_config import EngineConfig
from engine.core.transport import CoreSetup, SocketFolder, encode_setup

CHILD_MODULE = "engine.core.process"
TERMINATE_S = 3.0
"""From SIGTERM to SIGKILL."""
_TAIL_LINES = 50
_MAX_LINE_CHARACTERS = 400


class CoreProcess:
    """One child process and the folder of its sockets.

    Two threads belong to it and end with it: one hands over the setup and passes on what the child prints,
    one waits for its end. Standard output of the child goes to our standard error, since our own standard
    output is the user's.
    """

    def __init__(self, folder: SocketFolder) -> None:
        self.folder = folder
        self.has_exited = threading.Event()
        """Set once the process is gone and reaped."""
        self._process: subprocess.Popen[bytes] | None = None
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self._threads: list[threading.Thread] = []
        self._finalizer: weakref.finalize[..., CoreProcess] | None = None

    @property
    def pid(self) -> int | None:
        """Process id, or None before the start."""
        return self._process.pid if self._process is not None else None

    def start(self, setup: CoreSetup, on_exit: Callable[[], None]) -> None:
        """Start the child; `on_exit` is called from a thread once it is gone.

        The child must be started from a thread that lasts: the kernel can tie its life to that thread.
        """
        # Before there is a process that would have to be ended if this fails.
        encoded_setup = encode_setup(setup)
        # -P: the current directory may hold folders named like our packages.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", CHILD_MODULE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            # Its own group: what is sent to ours (Ctrl-C, a group-wide SIGTERM) is ours to drain first.
            process_group=0,
        )
        # Also at interpreter exit, for callers that never got to shutting down.
        self._finalizer = weakref.finalize(self, _clean_up, self._process, self.folder)
        self._threads = [
            threading.Thread(
                target=_talk,
                args=(self._process, encoded_setup, self._tail),
                name="core-output",
                daemon=True,
            ),
            threading.Thread(
                target=_watch, args=(self._process, self.has_exited, on_exit), name="core-watch", daemon=True
            ),
        ]
        for thread in self._threads:
            thread.start()

    def terminate(self) -> None:
        """Ask the child to stop (SIGTERM)."""
        if self._process is not None:
            self._process.terminate()

    def kill(self) -> None:
        """End the child now (SIGKILL)."""
        if self._process is not None:
            self._process.kill()

    def describe_exit(self) -> str:
        """Return in one line how the process ended and, unless that was in order, its last printed line."""
        assert self._process is not None
        code = self._process.returncode
        if code is None:
            return f"the engine core (pid {self.pid}) does not answer"
        if code < 0:
            text = f"the engine core (pid {self.pid}) was killed by {_signal_name(-code)}"
        else:
            text = f"the engine core (pid {self.pid}) exited with code {code}"
        # What the child printed last may still be on its way through the pipe.
        self._threads[0].join(timeout=0.5)
        if code != 0 and self._tail:
            text += f"; it last said: {self._tail[-1][:_MAX_LINE_CHARACTERS]}"
        return text

    def close(self) -> None:
        """End the child if it still lives, reap it, and remove the folder; safe to call twice."""
        if self._finalizer is not None:
            self._finalizer()
        self.folder.remove()
        for thread in self._threads:
            thread.join(timeout=1.0)


def build_setup(config: EngineConfig, folder: SocketFolder, plugin_packages: Sequence[str]) -> CoreSetup:
    """Return what a core process started from this thread is to be told."""
    return CoreSetup(
        config=config,
        to_core=folder.to_core,
        to_client=folder.to_client,
        parent_pid=os.getpid(),
        # The kernel's death signal follows the thread; only the main thread lasts as long as the process.
        dies_with_thread=threading.current_thread() is threading.main_thread(),
        plugin_packages=list(plugin_packages),
        import_path=[entry for entry in sys.path if entry],
    )


def _talk(process: subprocess.Popen[bytes], setup: bytes, tail: deque[str]) -> None:
    """Write the setup, then pass on every line and remember the last ones."""
    assert process.stdin is not None
    assert process.stdout is not None
    # A child that died at once breaks the pipe; the watcher reports that.
    with contextlib.suppress(BrokenPipeError), process.stdin as stdin:
        stdin.write(setup)
    with process.stdout as stdout:
        for line in stdout:
            with contextlib.suppress(OSError):
                os.write(2, line)
            text = line.decode(errors="replace").strip()
            if text:
                tail.append(text)


def _watch(
    process: subprocess.Popen[bytes], has_exited: threading.Event, on_exit: Callable[[], None]
) -> None:
    process.wait()
    has_exited.set()
    on_exit()


def _clean_up(process: subprocess.Popen[bytes], folder: SocketFolder) -> None:
    if process.poll() is None:
        process.kill()
        process.wait()
    folder.remove()


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
