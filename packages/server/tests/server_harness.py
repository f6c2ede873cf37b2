"""A whole server on a real socket, its event loop in a thread of its own, over a scripted core."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import httpx
from engine.entrypoints.async_llm import AsyncLLM
from scripted_core import ByteTokenizer, ScriptedClient, build_config
from server.auth import OPEN_PATHS, KeyRing
from server.http_server import HttpServer, build_http_server
from server.listener import bind, describe
from server.settings import LimitsConfig, ServerConfig
from server.state import ServerState, ServerStatus

T = TypeVar("T")

PATIENCE_S = 20.0
MODEL = "m"


class RunningServer:
    """One server, from outside (`client`, `url`) and from inside (`core`, `state`, `on_loop`)."""

    def __init__(
        self, state: ServerState, listener: socket.socket, core: ScriptedClient, llm: AsyncLLM
    ) -> None:
        self.state = state
        self.core = core
        self.llm = llm
        self.url = describe(listener)
        self.port = listener.getsockname()[1]
        self.client = httpx.Client(base_url=self.url, timeout=PATIENCE_S)
        self.loop: asyncio.AbstractEventLoop | None = None

    def post(self, path: str, body: Any = None, **kwargs: Any) -> httpx.Response:
        return self.client.post(path, json=body, **kwargs)

    def chat(self, **fields: Any) -> httpx.Response:
        body = {"model": MODEL, "messages": [{"role": "user", "content": "Say hi"}], "max_tokens": 8}
        return self.post("/v1/chat/completions", body | fields)

    def complete(self, **fields: Any) -> httpx.Response:
        return self.post("/v1/completions", {"model": MODEL, "prompt": "Hello", "max_tokens": 4} | fields)

    def stream(self, path: str, **fields: Any) -> list[Any]:
        """Return the decoded events of a stream; the last is the text `[DONE]` where it ended well."""
        base: dict[str, Any] = {"model": MODEL, "max_tokens": 8, "stream": True}
        if path.endswith("chat/completions"):
            base["messages"] = [{"role": "user", "content": "Say hi"}]
        else:
            base["prompt"] = "Hello"
        response = self.post(path, base | fields)
        assert response.status_code == 200, response.text
        assert response.headers["content-type"].startswith("text/event-stream")
        return read_events(response.text)

    def metric(self, name: str, **labels: str) -> float:
        """Return a sample, or the sum of those that carry the labels."""
        return read_metric(self.client.get("/metrics").text, name, **labels)

    def on_loop(self, function: Callable[[], T]) -> T:
        """Run a function on the server's event loop."""
        assert self.loop is not None

        async def call() -> T:
            return function()

        return asyncio.run_coroutine_threadsafe(call(), self.loop).result(PATIENCE_S)

    def hold(self) -> None:
        self.on_loop(self.core.hold)

    def release(self) -> None:
        self.on_loop(self.core.release)

    def wait_idle(self) -> None:
        """Wait until nothing runs, waits or holds a block."""

        def is_idle() -> bool:
            counts = (
                self.llm.num_running,
                self.llm.num_waiting,
                len(self.core.running),
                len(self.core.waiting),
            )
            return counts == (0, 0, 0, 0) and self.core.num_used_blocks == 0

        wait_until(lambda: self.on_loop(is_idle))


def wait_until(condition: Callable[[], bool], patience_s: float = PATIENCE_S) -> None:
    """Poll until a condition holds."""
    deadline_s = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline_s, "it did not happen in time"
        time.sleep(0.005)


def read_events(text: str) -> list[Any]:
    """Return the decoded events of a whole stream."""
    assert text.endswith("\n\n")
    events = []
    for block in text.removesuffix("\n\n").split("\n\n"):
        if block.startswith(":"):
            continue
        assert block.startswith("data: "), block
        data = block.removeprefix("data: ")
        events.append(data if data == "[DONE]" else json.loads(data))
    return events


def read_metric(text: str, name: str, **labels: str) -> float:
    """Return a sample of Prometheus text, or the sum of those that carry the labels."""
    wanted = [f'{key}="{value}"' for key, value in labels.items()]
    values = [
        float(line.rpartition(" ")[2])
        for line in text.splitlines()
        if line.partition("{")[0].partition(" ")[0] == name and all(label in line for label in wanted)
    ]
    assert values, f"no sample of {name} {labels}"
    return sum(values)


@contextmanager
def run_server(
    *,
    settings: Mapping[str, Any] | None = None,
    limits: Mapping[str, Any] | None = None,
    keys: Sequence[str] = (),
    policy: str = "fcfs",
    max_num_seqs: int = 8,
    step_s: float = 0.0,
    is_ready: bool = True,
    has_tokenizer: bool = True,
) -> Iterator[RunningServer]:
    """Give a server that answers; it is stopped and its thread joined afterwards."""
    server_config = ServerConfig(**({"port": 0, "served_model_name": MODEL} | dict(settings or {})))
    limits_config = LimitsConfig(**dict(limits or {}))
    open_paths = OPEN_PATHS | {"/metrics"} if server_config.open_metrics else OPEN_PATHS
    listener = bind(server_config.host, 0)
    state = ServerState(server_config, limits_config, [MODEL], KeyRing(keys, open_paths))
    core = ScriptedClient(max_num_seqs=max_num_seqs, step_s=step_s)
    llm = AsyncLLM(
        build_config(policy=policy),
        max_waiting=limits_config.max_queued_requests,
        client=core,  # type: ignore[arg-type]  # a stand-in
        tokenizer=ByteTokenizer() if has_tokenizer else None,  # type: ignore[arg-type]  # a stand-in
    )
    running = RunningServer(state, listener, core, llm)
    http = build_http_server(state)
    thread = threading.Thread(
        target=lambda: asyncio.run(_serve(running, http, listener, is_ready)), daemon=True
    )
    thread.start()
    try:
        wait_until(lambda: http.started and (not is_ready or state.status is not ServerStatus.STARTING))
        yield running
    finally:
        running.client.close()
        http.should_exit = True
        running.on_loop(core.release)
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


async def _serve(running: RunningServer, http: HttpServer, listener: socket.socket, is_ready: bool) -> None:
    running.loop = asyncio.get_running_loop()
    serving = asyncio.create_task(http.serve(sockets=[listener]))
    try:
        if is_ready:
            await running.llm.start()
            running.state.set_ready(running.llm)
        await serving
    finally:
        await running.llm.shutdown()
        running.state.close()
