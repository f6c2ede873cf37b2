"""Bounds on what comes in, over raw sockets: heads, bodies, depths, connections, slow clients."""

from __future__ import annotations

import json
import socket
import time

import pytest
from server_harness import PATIENCE_S, RunningServer, run_server, wait_until

POST_HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
BODY = b'{"prompt":"Hello","max_tokens":4}'


def connect(server: RunningServer) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", server.port), PATIENCE_S)
    connection.settimeout(PATIENCE_S)
    return connection


def read_all(connection: socket.socket) -> bytes:
    """Everything until the server closes."""
    received = b""
    try:
        while chunk := connection.recv(65536):
            received += chunk
    except ConnectionResetError:
        pass  # it closed with bytes of ours unread
    return received


def exchange(server: RunningServer, data: bytes) -> tuple[int, dict[str, object]]:
    """Status and error of a request after which the server closes."""
    with connect(server) as connection:
        connection.sendall(data)
        return parse(read_all(connection))


def parse(answer: bytes) -> tuple[int, dict[str, object]]:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head, "there was no answer"
    return int(head.split()[1]), json.loads(body)["error"]


@pytest.fixture(scope="module")
def tight_server():  # type: ignore[no-untyped-def]
    limits = {
        "max_body_bytes": 2000,
        "max_header_bytes": 2000,
        "max_headers": 20,
        "max_json_depth": 8,
        "header_timeout_s": 0.2,
        "body_timeout_s": 0.2,
    }
    with run_server(limits=limits) as server:
        yield server
        server.wait_idle()


def test_a_declared_body_too_long_is_refused_unread(tight_server: RunningServer) -> None:
    status, error = exchange(tight_server, POST_HEAD + b"Content-Length: 2001\r\n\r\n")
    assert (status, error["type"]) == (413, "RequestTooLargeError")


def test_a_chunked_body_too_long_is_refused_while_reading(tight_server: RunningServer) -> None:
    chunk = b"400\r\n" + b"x" * 1024 + b"\r\n"
    status, _ = exchange(tight_server, POST_HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunk * 2)
    assert status == 413


@pytest.mark.parametrize(
    "head",
    [
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 3000 + b"\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 3000,  # and never an end
        b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + b"A: b\r\n" * 30 + b"\r\n",
        b"GET /health?" + b"x" * 3000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ],
)
def test_a_head_too_large_is_refused(tight_server: RunningServer, head: bytes) -> None:
    status, error = exchange(tight_server, head)
    assert (status, error["type"]) == (431, "RequestTooLargeError")


@pytest.mark.parametrize(
    "data",
    [
        b"nonsense\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost localhost\r\n\r\n",
        POST_HEAD + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        POST_HEAD + b"Content-Length: 4\r\nContent-Length: 5\r\n\r\nabcde",
        POST_HEAD + b"Content-Length: -1\r\n\r\n",
        POST_HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
    ids=["no HTTP", "bad header", "two lengths", "two sizes", "negative size", "bad chunk", "TLS"],
)
def test_what_is_no_http_is_refused_in_the_envelope(tight_server: RunningServer, data: bytes) -> None:
    status, error = exchange(tight_server, data)
    assert (status, error["type"]) == (400, "BadRequestError")


def test_a_slow_head_is_cut_off(tight_server: RunningServer) -> None:
    status, error = exchange(tight_server, b"GET /health HT")
    assert (status, error["type"]) == (408, "RequestTimeoutError")


def test_a_silent_connection_is_closed(tight_server: RunningServer) -> None:
    with connect(tight_server) as connection:
        assert read_all(connection) == b""


def test_a_slow_body_is_cut_off(tight_server: RunningServer) -> None:
    status, error = exchange(tight_server, POST_HEAD + b"Content-Length: 40\r\n\r\n" + BODY[:10])
    assert (status, error["type"]) == (408, "RequestTimeoutError")


def test_a_second_request_on_a_connection_is_bounded_too(tight_server: RunningServer) -> None:
    with connect(tight_server) as connection:
        connection.sendall(b"GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"200 OK" in connection.recv(65536)
        connection.sendall(b"GET /live HT")
        status, _ = parse(read_all(connection))
        assert status == 408


def test_pipelined_requests_are_answered_in_order(tight_server: RunningServer) -> None:
    request = POST_HEAD + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY
    last = b"GET /live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    with connect(tight_server) as connection:
        connection.sendall(request + last)
        received = read_all(connection)
    assert received.count(b"HTTP/1.1 200") == 2
    assert received.index(b"text_completion") < received.index(b'"live"')


@pytest.mark.parametrize(
    "body",
    [
        '{"prompt":"a","future":' + "[" * 20 + "]" * 20 + "}",
        '{"messages":[{"role":"user","content":"a","x":' + '{"a":' * 20 + "1" + "}" * 20 + "}]}",
        '{"prompt":"a","future":' + "[" * 900 + "]" * 900 + "}",
    ],
)
def test_deep_json_is_refused(tight_server: RunningServer, body: str) -> None:
    path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
    response = tight_server.client.post(path, content=body)
    assert response.status_code == 400
    assert "nested deeper" in response.json()["error"]["message"]


def test_brackets_in_strings_are_not_depth(tight_server: RunningServer) -> None:
    assert tight_server.complete(prompt='[[[["[[[[\\"{{{{{{{{{' * 3).status_code == 200
    assert tight_server.complete(prompt=[list(b"a")] * 20).status_code == 200


def test_bodies_beyond_the_recursion_limit_are_refused(shared_server: RunningServer) -> None:
    body = '{"prompt":"a","future":' + "[" * 100_000 + "]" * 100_000 + "}"
    response = shared_server.client.post("/v1/completions", content=body)
    assert response.status_code == 400


def test_one_connection_too_many_is_refused() -> None:
    with run_server(limits={"max_connections": 3}) as server:
        held = [connect(server) for _ in range(3)]
        try:
            with connect(server) as connection:
                status, error = parse(read_all(connection))
            assert (status, error["type"]) == (503, "ServiceUnavailableError")
        finally:
            for connection in held:
                connection.close()
        wait_until(lambda: server.client.get("/live").status_code == 200)


def test_an_idle_connection_is_closed_after_its_time() -> None:
    with run_server(limits={"keep_alive_timeout_s": 1.0}) as server, connect(server) as connection:
        connection.sendall(b"GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        start_s = time.monotonic()
        assert b"200 OK" in read_all(connection)
        assert time.monotonic() - start_s < 5


def test_an_upgrade_that_is_not_offered_is_answered_as_plain_http(shared_server: RunningServer) -> None:
    head = b"GET /live HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade, close\r\nUpgrade: h2c\r\n\r\n"
    with connect(shared_server) as connection:
        connection.sendall(head)
        assert b"200 OK" in connection.recv(65536)


def test_a_trailer_does_not_pass_for_a_header(shared_server: RunningServer) -> None:
    chunks = b"%x\r\n%s\r\n0\r\nHost: localhost\r\n\r\n" % (len(BODY), BODY)
    head = b"POST /v1/completions HTTP/1.1\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n"
    assert exchange(shared_server, head + b"\r\n" + chunks)[0] == 403
    with connect(shared_server) as connection:
        connection.sendall(
            head + b"Host: localhost\r\n\r\n" + chunks.replace(b"Host: localhost", b"X-Request-Id: late")
        )
        answer = read_all(connection)
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b"late" not in answer
