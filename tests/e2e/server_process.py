"""`python -m server` as users start it: a process on a free port, watched and checked for leftovers."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import httpx

PATIENCE_S = 120.0
_ADDRESS = re.compile(r"listening on (http://\S+)")


class ServerProcess:
    """One running server.

    Attributes:
        url: where it listens.
        client: plain HTTP, with the key where one was set.
    """

    def __init__(self, *overrides: str, environment: Mapping[str, str] | None = None, key: str = "") -> None:
        environ = {**os.environ, "OMP_NUM_THREADS": "1", **(environment or {})}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "server", "server.port=0", *overrides],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=environ,
        )
        self._lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        wait_until(lambda: self._find_url() is not None or self._process.poll() is not None)
        self.url = self._find_url() or ""
        assert self.url, self.log
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self.client = httpx.Client(base_url=self.url, headers=headers, timeout=PATIENCE_S)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def log(self) -> str:
        """Everything on standard error so far."""
        return "".join(self._lines)

    def wait_ready(self) -> None:
        wait_until(lambda: self.get_status("/health") == 200 or self._process.poll() is not None)
        assert self._process.poll() is None, self.log

    def get_status(self, path: str) -> int:
        """Status of a GET; 0 where nothing answers."""
        try:
            return self.client.get(path).status_code
        except httpx.TransportError:
            return 0

    def get_metric(self, name: str, **labels: str) -> float:
        """Sum of the samples of a metric that carry these labels."""
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        return sum(
            float(line.rpartition(" ")[2])
            for line in self.client.get("/metrics").text.splitlines()
            if re.split(r"[{ ]", line)[0] == name and all(label in line for label in wanted)
        )

    def wait_idle(self) -> None:
        """Wait until nothing runs, waits or holds a block."""
        gauges = ("num_requests_running", "num_requests_waiting", "kv_cache_blocks_used")
        wait_until(lambda: all(self.get_metric(f"pagoda_{gauge}") == 0 for gauge in gauges), 5.0)

    def get_children(self) -> list[int]:
        """Ids of the processes below this one."""
        found: list[int] = []
        pending = [self.pid]
        while pending:
            for tasks in Path(f"/proc/{pending.pop()}/task").glob("*/children"):
                below = [int(word) for word in tasks.read_text().split()]
                found += below
                pending += below
        return found

    def send_signal(self, number: int = signal.SIGTERM) -> None:
        os.kill(self.pid, number)

    def wait(self, patience_s: float = PATIENCE_S) -> tuple[int, str]:
        """Wait for the end; return exit status and the last line of standard error."""
        status = self._process.wait(patience_s)
        self._reader.join(patience_s)
        lines = self.log.strip().splitlines()
        return status, lines[-1] if lines else ""

    def close(self) -> None:
        """End the process whatever its state."""
        self.client.close()
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)

    def _read(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as stream:
            for line in stream:
                self._lines.append(line)

    def _find_url(self) -> str | None:
        match = _ADDRESS.search(self.log)
        return match[1] if match else None


@contextmanager
def run_server(
    *overrides: str, environment: Mapping[str, str] | None = None, key: str = ""
) -> Iterator[ServerProcess]:
    """Give a server that is ready; whatever happens, no process of it is left afterwards."""
    server = ServerProcess(*overrides, environment=environment, key=key)
    children: list[int] = []
    try:
        server.wait_ready()
        children = server.get_children()
        yield server
    finally:
        server.close()
        wait_until(lambda: not any(is_running(pid) for pid in children), 10.0)


def is_running(pid: int) -> bool:
    """Whether a process lives; one that only waits to be reaped does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def wait_until(condition: Callable[[], bool], patience_s: float = PATIENCE_S) -> None:
    """Poll until a condition holds."""
    deadline_s = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline_s, "it did not happen in time"
        time.sleep(0.01)
