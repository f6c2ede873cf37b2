"""Keys, hosts, origins, request ids: who may come in and what is told to whom."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest
from engine.types.errors import ConfigError
from server.app import find_routes
from server.auth import OPEN_PATHS, load_keys
from server.middleware.gate import get_allowed_hosts
from server_harness import RunningServer, run_server

KEY, OTHER_KEY = "secret-123", "another-secret"


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def test_every_route_but_the_open_ones_needs_a_key() -> None:
    with run_server(keys=[KEY, OTHER_KEY]) as server:
        for route in find_routes():
            path = route.path.replace("{model_id:path}", "m")
            status = server.client.request(route.method, path).status_code
            assert (status == 401) == (path not in OPEN_PATHS), path
        for path in (
            "/v1/nothing",
            "/",
            "/health/",
            "//health",
            "/HEALTH",
            "/health%2f",
            "/health;/v1/models",
        ):
            assert server.client.get(path).status_code == 401, path


def test_each_key_opens_and_nothing_close_to_one_does() -> None:
    with run_server(keys=[KEY, OTHER_KEY]) as server:
        for key in (KEY, OTHER_KEY):
            assert server.chat().status_code == 401
            assert server.client.get("/v1/models", headers=bearer(key)).status_code == 200
            assert server.client.get("/v1/models", headers={"X-Api-Key": key}).status_code == 200
            assert (
                server.client.get("/v1/models", headers={"authorization": f"bearer {key}"}).status_code == 200
            )
        for wrong in (KEY[:-1], KEY + "x", KEY.upper(), "caf\u00e9", f"{KEY},{OTHER_KEY}"):
            headers = {"Authorization": f"Bearer {wrong}".encode()}
            response = server.client.get("/v1/models", headers=headers)
            assert response.status_code == 401
        assert server.client.get("/v1/models", headers={"Authorization": f"Basic {KEY}"}).status_code == 401
        assert server.client.get(f"/v1/models?api_key={KEY}").status_code == 401


def test_a_401_is_in_the_envelope_and_reads_no_body() -> None:
    with run_server(keys=[KEY]) as server:
        response = server.client.post("/v1/chat/completions", content=b"x" * 1_000_000)
        assert response.status_code == 401
        assert response.headers["www-authenticate"] == "Bearer"
        assert response.json()["error"]["type"] == "Unauthorized"
        assert response.json()["error"]["code"] == 401
        assert server.client.get("/metrics", headers=bearer(KEY)).status_code == 200


def test_metrics_are_open_by_choice() -> None:
    with run_server(keys=[KEY], settings={"open_metrics": True}) as server:
        assert server.client.get("/metrics").status_code == 200
        assert server.client.get("/docs").status_code == 401


def test_the_key_is_in_no_log_line_and_no_answer(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with run_server(keys=[KEY]) as server:
        answers = [
            server.client.get(f"/v1/models?key={KEY}", headers=bearer(KEY)),
            server.client.post("/v1/completions", json={"prompt": 1}, headers=bearer(KEY)),
            server.client.get("/metrics", headers=bearer(KEY)),
            server.client.get("/openapi.json", headers=bearer(KEY)),
        ]
    assert KEY not in caplog.text.replace(f"HTTP Request: GET {server.url}/v1/models?key={KEY}", "")
    for answer in answers:
        assert KEY not in answer.text
        assert KEY not in str(answer.headers)


def test_keys_come_from_file_and_environment_which_forgets_them(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"# who has it\n{KEY}\n\n{OTHER_KEY}\n{KEY}\n")
    environment = {"PAGODA_API_KEY": "first-key, second-key", "HOME": "/"}
    assert load_keys(str(file), environment) == ["first-key", "second-key", KEY, OTHER_KEY]
    assert environment == {"HOME": "/"}
    assert load_keys(None, {}) == []


@pytest.mark.parametrize("text", ["", "# nothing\n\n", "two words\n", "caf\u00e9\n"])
def test_a_key_file_without_usable_keys_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "keys"
    file.write_text(text)
    with pytest.raises(ConfigError):
        load_keys(str(file), {})


def test_a_key_file_that_is_not_there_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"server\.api_key_file"):
        load_keys(str(tmp_path / "none"), {})


def test_another_host_name_is_refused_on_a_loopback_address(shared_server: RunningServer) -> None:
    for host in ("evil.example", "evil.example:8000", "127.0.0.1.evil.example", ""):
        response = shared_server.client.get("/health", headers={"Host": host})
        assert response.status_code == 403, host
        assert response.json()["error"]["type"] == "ForbiddenError"
        assert "evil" not in response.text
    for host in ("localhost", "LOCALHOST:1", "127.0.0.1:9", "[::1]:8000"):
        assert shared_server.client.get("/health", headers={"Host": host}).status_code == 200, host


def test_hosts_are_free_on_a_public_address_unless_named() -> None:
    assert get_allowed_hosts("0.0.0.0", []) == {"*"}
    assert "model.example" in get_allowed_hosts("0.0.0.0", ["model.example"])
    assert "*" not in get_allowed_hosts("0.0.0.0", ["model.example"])
    assert "model.example" in get_allowed_hosts("127.0.0.1", ["model.example"])


def test_cors_is_off_unless_origins_are_named() -> None:
    preflight = {"Origin": "http://page.example", "Access-Control-Request-Method": "POST"}
    with run_server() as server:
        response = server.client.options("/v1/chat/completions", headers=preflight)
        assert response.status_code == 405
        response = server.client.get("/health", headers={"Origin": "http://page.example"})
        assert not [name for name in response.headers if name.startswith("access-control")]
    with run_server(settings={"cors_origins": ["http://page.example"]}, keys=[KEY]) as server:
        response = server.client.options("/v1/chat/completions", headers=preflight)
        assert response.status_code == 200
        assert response.headers["access-control-allow-origin"] == "http://page.example"
        assert "access-control-allow-credentials" not in response.headers
        other = preflight | {"Origin": "http://other.example"}
        assert server.client.options("/v1/chat/completions", headers=other).status_code == 400


@pytest.mark.parametrize("given", ["abc-1", "x" * 128, "a.b_c:d/e@f=g+h"])
def test_a_request_id_is_echoed(shared_server: RunningServer, given: str) -> None:
    for path in ("/health", "/v1/nothing"):
        response = shared_server.client.get(path, headers={"X-Request-Id": given})
        assert response.headers["x-request-id"] == given


@pytest.mark.parametrize("given", ["", "x" * 129, "a b", 'a"b', "<script>"])
def test_a_request_id_out_of_bounds_is_replaced(shared_server: RunningServer, given: str) -> None:
    response = shared_server.client.get("/health", headers={"X-Request-Id": given})
    assert response.headers["x-request-id"] != given
    assert len(response.headers["x-request-id"]) == 32


def test_the_same_request_id_twice_at_once_names_two_requests() -> None:
    with run_server(step_s=0.002) as server:
        events = [
            server.post(
                "/v1/completions", {"prompt": prompt, "max_tokens": 8}, headers={"X-Request-Id": "dup"}
            ).json()
            for prompt in ("one", "two")
        ]
        assert events[0]["id"] != events[1]["id"]
        assert events[0]["choices"] != events[1]["choices"]


def test_unknown_fields_are_ignored_warned_of_or_refused_as_set(shared_server: RunningServer) -> None:
    assert "x-pagoda-ignored-fields" not in shared_server.chat(future=1).headers
    with run_server(settings={"unknown_fields": "warn"}) as server:
        response = server.chat(future=1, **{"odd\r\nname: x": 2})
        assert response.status_code == 200
        assert response.headers["x-pagoda-ignored-fields"] == "future, ?"
        assert "x-pagoda-ignored-fields" not in server.chat().headers
    with run_server(settings={"unknown_fields": "refuse"}) as server:
        assert server.chat(future=1).json()["error"]["param"] == "future"
        assert server.chat().status_code == 200


def test_docs_describe_every_route(shared_server: RunningServer) -> None:
    document = shared_server.client.get("/openapi.json").json()
    page = shared_server.client.get("/docs").text
    for route in find_routes():
        path = route.path.replace(":path", "")
        assert route.method.lower() in document["paths"][path]
        assert path in page
    assert "<script" not in page
    # Nothing on the page is fetched from another host.
    assert not re.search(r"""(src|href|url|@import)\s*[=(]?\s*["']?(https?:)?//""", page)
