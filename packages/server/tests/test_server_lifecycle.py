"""The life of the process over a scripted core: start, signals, drain, death, exit status."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest
from server_harness import PATIENCE_S, read_events, wait_until

SCRIPT = Path(__file__).parent / "scripted_server.py"


class ServerProcess:
    """One process, its port and what it wrote to standard error."""

    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        self.process = process
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE_S)

    def status_of(self, path: str = "/health") -> int:
        """Status of a GET; 0 where nothing answers."""
        try:
            return self.client.get(path).status_code
        except httpx.TransportError:
            return 0

    def signal(self, number: int = signal.SIGTERM) -> None:
        os.kill(self.process.pid, number)

    def wait(self) -> tuple[int, str]:
        """Exit status and the last line of standard error."""
        _, errors = self.process.communicate(timeout=PATIENCE_S)
        lines = errors.strip().splitlines()
        return self.process.returncode, lines[-1] if lines else ""


@contextmanager
def started(*words: str, is_ready: bool = True) -> Iterator[ServerProcess]:
    process = subprocess.Popen(
        [sys.executable, str(SCRIPT), *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        port = process.stdout.readline().strip()
        assert port, process.communicate()[1]
        server = ServerProcess(process, int(port))
        with server.client:
            if is_ready:
                wait_until(lambda: server.status_of() == 200)
            yield server
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


class Stream(threading.Thread):
    """Reads one stream to its end, whatever that is."""

    def __init__(self, server: ServerProcess, max_tokens: int) -> None:
        super().__init__(daemon=True)
        self._url = f"{server.client.base_url}/v1/completions"
        self._body = {"prompt": "Hello", "max_tokens": max_tokens, "stream": True, "ignore_eos": True}
        self.text = ""
        self.has_begun = threading.Event()
        self.start()
        assert self.has_begun.wait(PATIENCE_S)

    def run(self) -> None:
        # A process that exits at once cuts its streams off.
        with (
            suppress(httpx.TransportError),
            httpx.stream("POST", self._url, json=self._body, timeout=PATIENCE_S) as response,
        ):
            for piece in response.iter_text():
                self.text += piece
                self.has_begun.set()

    def finish(self) -> list[object]:
        self.join(PATIENCE_S)
        assert not self.is_alive()
        return read_events(self.text)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_streams_end_and_exits_0(number: int) -> None:
    with started("step_s=0.01", "drain_timeout_s=20") as server:
        streams = [Stream(server, 60) for _ in range(4)]
        server.signal(number)
        wait_until(lambda: server.status_of() == 503, 2)
        assert server.client.get("/health").json() == {"status": "draining"}
        assert server.client.post("/v1/completions", json={"prompt": "x"}).status_code == 503
        for stream in streams:
            assert stream.finish()[-1] == "[DONE]"
        assert server.wait()[0] == 0


def test_streams_that_outlast_the_drain_end_with_an_error_event() -> None:
    with started("step_s=0.01", "drain_timeout_s=0.1") as server:
        stream = Stream(server, 1900)
        server.signal()
        last = stream.finish()[-1]
        assert isinstance(last, dict)
        assert (last["error"]["code"], last["error"]["type"]) == (503, "ServiceUnavailableError")
        assert server.wait()[0] == 0


def test_a_second_signal_exits_at_once() -> None:
    with started("step_s=0.01", "drain_timeout_s=60") as server:
        Stream(server, 1900)
        server.signal()
        wait_until(lambda: server.status_of() == 503, 2)
        server.signal()
        assert server.process.wait(2) == 0


def test_an_idle_server_stops_at_once() -> None:
    with started() as server:
        server.signal()
        assert server.process.wait(3) == 0


def test_a_signal_while_starting_stops_at_once() -> None:
    with started("never_starts=1", is_ready=False) as server:
        wait_until(lambda: server.client.get("/health").json().get("phase") == "load_weights")
        server.signal()
        assert server.process.wait(5) == 0


def test_a_signal_while_downloading_ends_the_download_too(tmp_path: Path) -> None:
    with started(f"downloads_for_ever={tmp_path}", is_ready=False) as server:
        pid_file = tmp_path / "pid"
        wait_until(lambda: pid_file.exists() and pid_file.read_text() != "")
        assert server.client.get("/health").json()["phase"] == "fetch_model"
        server.signal()
        assert server.process.wait(5) == 0
        wait_until(lambda: not Path("/proc", pid_file.read_text()).exists(), 5)


def test_a_dead_engine_ends_streams_turns_health_and_exits_with_its_cause() -> None:
    with started("step_s=0.01", "dies_at_token=30", "exit_delay_s=1.5") as server:
        last = Stream(server, 1900).finish()[-1]
        assert isinstance(last, dict)
        assert last["error"]["code"] == 503
        assert server.client.get("/health").json() == {"status": "dead"}
        assert server.client.post("/v1/completions", json={"prompt": "x"}).status_code == 503
        status, line = server.wait()
        assert status == 1
        assert line.endswith("the engine died: killed by signal 9")


def test_a_signal_to_a_server_whose_engine_is_dead_cuts_the_wait_short() -> None:
    with started("dies_at_token=1", "exit_delay_s=60") as server:
        server.client.post("/v1/completions", json={"prompt": "x", "max_tokens": 50})
        wait_until(lambda: server.status_of() == 503)
        server.signal()
        assert server.process.wait(5) == 1


def test_an_engine_that_does_not_start_is_the_last_line_of_a_failure() -> None:
    with started("start_error=out of memory while loading weights", is_ready=False) as server:
        status, line = server.wait()
        assert status == 1
        assert line.endswith("the engine did not start: out of memory while loading weights")


def test_a_checkpoint_that_cannot_be_used_is_a_fault_of_configuration() -> None:
    with started("prepare_error=no such checkpoint; give another path", is_ready=False) as server:
        assert server.wait() == (2, "scripted: no such checkpoint; give another path")
