"""Clients that go, that do not read, that are too many: nothing is left running."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from server_harness import PATIENCE_S, RunningServer, read_events, run_server, wait_until

PATHS = ("/v1/chat/completions", "/v1/completions")


def body_of(path: str, **fields: Any) -> dict[str, Any]:
    prompt: dict[str, Any] = {"prompt": "Hello"}
    if path == PATHS[0]:
        prompt = {"messages": [{"role": "user", "content": "Say hi"}]}
    return prompt | {"max_tokens": 1500, "ignore_eos": True} | fields


@contextlib.contextmanager
def raw_request(
    server: RunningServer, path: str, body: dict[str, Any], *, receive_bytes: int = 65536
) -> Iterator[socket.socket]:
    data = json.dumps(body).encode()
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        connection.settimeout(PATIENCE_S)
        connection.connect(("127.0.0.1", server.port))
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n"
        connection.sendall(head.encode() + data)
        yield connection


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("fields", [{"stream": True}, {"stream": False}, {"stream": True, "n": 3}])
def test_a_client_that_goes_while_it_is_answered_leaves_nothing(path: str, fields: dict[str, Any]) -> None:
    with run_server(step_s=0.001) as server:
        for _ in range(3):
            with raw_request(server, path, body_of(path, **fields)) as connection:
                wait_until(lambda: server.on_loop(lambda: len(server.core.running)) > 0)
                if fields["stream"]:
                    assert connection.recv(100)
            server.wait_idle()
        assert server.metric("pagoda_request_success_total", finished_reason="abort") == 3
        assert server.complete().status_code == 200


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_while_it_waits_leaves_nothing(stream: bool) -> None:
    with run_server(max_num_seqs=1) as server:
        server.hold()
        for path in PATHS:
            with raw_request(server, path, body_of(path, stream=stream)):
                wait_until(lambda: server.on_loop(lambda: server.llm.num_waiting) > 0)
            wait_until(lambda: server.on_loop(lambda: server.llm.num_waiting) == 0)
        server.release()
        server.wait_idle()


def test_a_client_that_goes_before_its_body_ends_leaves_nothing() -> None:
    with run_server() as server:
        with socket.create_connection(("127.0.0.1", server.port), PATIENCE_S) as connection:
            connection.sendall(
                b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n{"
            )
        server.wait_idle()
        assert server.complete().status_code == 200


def test_several_prompts_end_with_their_client() -> None:
    with run_server(step_s=0.001) as server:
        body = body_of(PATHS[1], prompt=["a", "b", "c"], n=2, stream=True)
        with raw_request(server, PATHS[1], body) as connection:
            assert connection.recv(100)
        server.wait_idle()


def test_a_reader_that_does_not_read_is_dropped_and_holds_up_nobody(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "server")
    with run_server(limits={"send_timeout_s": 0.3}, max_num_seqs=9) as server:
        # Far more than the buffers of both sides hold.
        body = body_of(PATHS[1], prompt=["x"] * 8, stream=True, logprobs=20, return_token_ids=True)
        with raw_request(server, PATHS[1], body, receive_bytes=4096):
            wait_until(lambda: server.on_loop(lambda: server.llm.num_running) > 0)
            assert server.complete().status_code == 200
            # While the connection stands: a client that closes has gone, and is not dropped.
            wait_until(lambda: "was not read for 0.3 s" in caplog.text)
            server.wait_idle()
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


def test_more_than_the_queue_holds_is_answered_429_at_once() -> None:
    with run_server(max_num_seqs=1, limits={"max_queued_requests": 2}) as server:
        server.hold()
        with ThreadPoolExecutor(20) as pool:
            futures = [
                pool.submit(
                    httpx.post, f"{server.url}{PATHS[1]}", json={"prompt": f"p{i}"}, timeout=PATIENCE_S
                )
                for i in range(20)
            ]
            wait_until(lambda: sum(future.done() for future in futures) == 17)
            refused = [future.result() for future in futures if future.done()]
            for response in refused:
                assert response.status_code == 429
                assert response.json()["error"]["type"] == "TooManyRequestsError"
                assert int(response.headers["retry-after"]) >= 1
            assert server.on_loop(lambda: server.llm.num_waiting) == 3
            server.release()
            statuses = [future.result().status_code for future in futures]
        assert statuses.count(200) == 3
        assert server.metric("pagoda_requests_refused_total", reason="queue_full") == 17
        server.wait_idle()


def test_prompts_that_do_not_all_fit_the_queue_start_none() -> None:
    with run_server(max_num_seqs=2, limits={"max_queued_requests": 2}) as server:
        assert server.complete(prompt=["a"] * 5).status_code == 429
        assert server.on_loop(lambda: server.llm.num_waiting) == 0
        assert server.complete(prompt=["a"] * 4).status_code == 200


def test_streams_end_with_an_error_event_when_the_core_dies() -> None:
    with run_server(step_s=0.001) as server:
        texts: list[str] = []

        def read(path: str) -> None:
            texts.append(server.post(path, body_of(path, stream=True)).text)

        threads = [threading.Thread(target=read, args=(path,)) for path in PATHS]
        for thread in threads:
            thread.start()
        wait_until(lambda: server.on_loop(lambda: len(server.core.running)) == 2)
        server.on_loop(lambda: server.core.die("killed by signal 9"))
        for thread in threads:
            thread.join(5)
            assert not thread.is_alive()
        for text in texts:
            events = read_events(text)
            assert events[-1]["error"]["code"] == 503
            assert "killed by signal" not in text


def test_a_request_that_waits_when_the_core_dies_gets_a_503() -> None:
    with run_server() as server:
        server.hold()
        with ThreadPoolExecutor(2) as pool:
            futures = [pool.submit(server.post, path, body_of(path, stream=True)) for path in PATHS]
            wait_until(lambda: server.on_loop(lambda: server.llm.num_waiting) == 2)
            server.on_loop(lambda: server.core.die("gone"))
            assert [future.result(5).status_code for future in futures] == [503, 503]


def test_a_silent_stream_is_kept_alive_where_that_is_switched_on() -> None:
    with run_server(settings={"sse_keep_alive_s": 0.02}) as server:
        server.hold()
        with raw_request(server, PATHS[0], body_of(PATHS[0], stream=True, max_tokens=4)) as connection:
            received = b""
            while received.count(b": keep-alive\n\n") < 3:
                received += connection.recv(65536)
            server.release()
            while b"[DONE]" not in received:
                received += connection.recv(65536)
        assert received.index(b"keep-alive") < received.index(b"assistant")
        server.wait_idle()


def test_64_streams_at_once_each_equal_their_lone_run() -> None:
    with run_server(max_num_seqs=16) as server:

        def text_of(i: int) -> str:
            events = server.stream(PATHS[1], prompt=f"prompt number {i}", max_tokens=40)
            return "".join(event["choices"][0]["text"] for event in events[:-1])

        lone = [text_of(i) for i in range(64)]
        with ThreadPoolExecutor(64) as pool:
            assert list(pool.map(text_of, range(64))) == lone
        server.wait_idle()
