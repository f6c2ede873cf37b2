"""The process of a server from start to end: keys, queue, signals, a killed core, nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
from server_process import PATIENCE_S, ServerProcess, is_running, run_server, wait_until

COMPLETIONS = "/v1/completions"
LONG = {"prompt": "The boats wait", "max_tokens": 450, "ignore_eos": True, "temperature": 0}


def overrides(folder: Path, *more: str) -> tuple[str, ...]:
    return (
        f"+model={folder}",
        "model.dtype=float32",
        "model.max_model_len=512",
        "cache.num_blocks=256",
        *more,
    )


class Stream(threading.Thread):
    """Reads one stream to its end, whatever that is."""

    def __init__(self, server: ServerProcess, **fields: object) -> None:
        super().__init__(daemon=True)
        self._url = server.url + COMPLETIONS
        self._body = LONG | {"stream": True} | fields
        self._has_begun = threading.Event()
        self.text = ""
        self.start()
        assert self._has_begun.wait(PATIENCE_S)

    def run(self) -> None:
        try:
            with httpx.stream("POST", self._url, json=self._body, timeout=PATIENCE_S) as response:
                for piece in response.iter_text():
                    self.text += piece
                    self._has_begun.set()
        except httpx.TransportError as error:
            self.text += f"broken: {error}"

    def get_last_event(self, patience_s: float = PATIENCE_S) -> str:
        self.join(patience_s)
        assert not self.is_alive()
        return self.text.strip().rpartition("\n\n")[2].removeprefix("data: ")


def test_health_answers_with_the_phase_from_the_first_second(tiny_llama_dir: Path) -> None:
    server = ServerProcess(*overrides(tiny_llama_dir))
    try:
        response = server.client.get("/health")
        if response.status_code == 503:
            body = response.json()
            assert body["status"] == "starting"
            assert body["phase"]
            assert 0 <= body.get("progress", 0) <= 1
        server.wait_ready()
        assert server.get_metric("pagoda_startup_phase_seconds", phase="load_weights") > 0
        children = server.get_children()
        assert children
        server.send_signal(signal.SIGINT)
        status, _ = server.wait(15)
        assert status == 0, server.log
        wait_until(lambda: not any(map(is_running, children)), 5.0)
    finally:
        server.close()


def test_a_killed_core_ends_streams_turns_health_and_ends_the_server(tiny_llama_dir: Path) -> None:
    with run_server(*overrides(tiny_llama_dir)) as server:
        streams = [Stream(server) for _ in range(2)]
        [core, *others] = server.get_children()
        os.kill(core, signal.SIGKILL)
        for stream in streams:
            error = json.loads(stream.get_last_event(5))["error"]
            assert error["code"] == 503
        assert server.get_status("/health") == 503
        assert server.client.post(COMPLETIONS, json=LONG).status_code == 503
        status, line = server.wait(10)
        assert status == 1
        assert "the engine died" in line
        wait_until(lambda: not any(map(is_running, [core, *others])), 10.0)


def test_sigterm_lets_running_streams_end(tiny_llama_dir: Path) -> None:
    with run_server(*overrides(tiny_llama_dir, "server.drain_timeout_s=60")) as server:
        streams = [Stream(server) for _ in range(4)]
        children = server.get_children()
        server.send_signal()
        wait_until(lambda: server.get_status("/health") in (503, 0), 2.0)
        if server.get_status("/live") == 200:  # unless all streams have ended meanwhile
            assert server.client.post(COMPLETIONS, json=LONG).status_code == 503
        assert [stream.get_last_event() for stream in streams] == ["[DONE]"] * 4
        assert server.wait()[0] == 0
        wait_until(lambda: not any(map(is_running, children)), 5.0)


def test_a_second_signal_ends_everything_at_once(tiny_llama_dir: Path) -> None:
    more = ("server.drain_timeout_s=60", "cache.num_blocks=null")
    with run_server(*overrides(tiny_llama_dir, *more)) as server:
        streams = [Stream(server, n=64, temperature=1.0) for _ in range(2)]
        children = server.get_children()
        server.send_signal()
        wait_until(lambda: server.get_status("/health") == 503, 5.0)
        server.send_signal()
        server.wait(2)
        wait_until(lambda: not any(map(is_running, children)), 2.0)
        assert all(stream.get_last_event() != "[DONE]" for stream in streams)


def test_a_full_queue_answers_429_quickly(tiny_llama_dir: Path) -> None:
    more = ("limits.max_queued_requests=2", "scheduler.max_num_seqs=1", "cache.num_blocks=null")
    with run_server(*overrides(tiny_llama_dir, *more)) as server:

        def post(_: int) -> httpx.Response:
            return httpx.post(server.url + COMPLETIONS, json=LONG, timeout=PATIENCE_S)

        with ThreadPoolExecutor(20) as pool:
            responses = list(pool.map(post, range(20)))
        refused = [response for response in responses if response.status_code == 429]
        assert refused
        assert all("retry-after" in response.headers for response in refused)
        assert {response.status_code for response in responses} == {200, 429}
        server.wait_idle()


def test_keys_guard_everything_and_are_nowhere_to_be_read(tiny_llama_dir: Path, tmp_path: Path) -> None:
    key_file = tmp_path / "keys"
    key_file.write_text("from-the-file\n")
    key_file.chmod(0o600)
    more = (f"server.api_key_file={key_file}", "observability.log_level=debug")
    environment = {"PAGODA_API_KEY": "from-the-environment"}
    with run_server(
        *overrides(tiny_llama_dir, *more), environment=environment, key="from-the-file"
    ) as server:
        assert server.client.post(COMPLETIONS, json=LONG | {"max_tokens": 2}).status_code == 200
        for key, status in (("from-the-environment", 200), ("from-nowhere", 401), ("", 401)):
            headers = {"Authorization": f"Bearer {key}" if key else "none"}
            response = httpx.get(f"{server.url}/v1/models", headers=headers)
            assert response.status_code == status
        [core, *_] = server.get_children()
        assert b"from-the-environment" not in Path(f"/proc/{core}/environ").read_bytes()
        server.send_signal()
        assert server.wait()[0] == 0
        assert "from-the-file" not in server.log
        assert "from-the-environment" not in server.log


def test_two_requests_that_do_not_fit_together_preempt_and_say_the_same(tiny_llama_dir: Path) -> None:
    # Blocks for about one and a half of them.
    more = ("cache.num_blocks=46", "model.max_model_len=512", "cache.enable_prefix_caching=false")
    base = (f"+model={tiny_llama_dir}", "model.dtype=float32")
    with run_server(*base, *more) as server:
        bodies = [LONG | {"prompt": prompt, "max_tokens": 440} for prompt in ("One boat", "Two boats")]

        def text_of(body: dict[str, object]) -> str:
            response = httpx.post(server.url + COMPLETIONS, json=body, timeout=PATIENCE_S)
            assert response.status_code == 200, response.text
            return str(response.json()["choices"][0]["text"])

        lone = [text_of(body) for body in bodies]
        with ThreadPoolExecutor(2) as pool:
            assert list(pool.map(text_of, bodies)) == lone
        assert server.get_metric("pagoda_num_preemptions_total") > 0
        server.wait_idle()


def test_explain_says_who_set_a_value_and_why(tiny_llama_dir: Path) -> None:
    command = [sys.executable, "-m", "server.explain", *overrides(tiny_llama_dir)]
    result = subprocess.run(
        [*command, "loader", "model.dtype", "cache.num_blocks"],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert result.returncode == 0, result.stderr
    rows = [line.split(" | ") for line in result.stdout.splitlines()]
    assert [row[0] for row in rows] == ["loader", "model.dtype", "cache.num_blocks"]
    assert rows[0][1:3] == ["safetensors", "default"]
    assert "auto -> safetensors" in rows[0][3]
    assert rows[1][1:3] == ["float32", "command line"]
    assert rows[2][1:3] == ["256", "command line"]
    mistake = subprocess.run(
        [*command, "cache.num_bloks"], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert mistake.returncode == 2
    assert "cache.num_blocks" in mistake.stderr
