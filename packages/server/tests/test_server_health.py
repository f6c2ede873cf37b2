"""The probes, from the first second to the last."""

from __future__ import annotations

from server.state import ServerStatus
from server_harness import RunningServer, run_server, wait_until


def test_health_answers_503_with_the_phase_while_the_engine_starts() -> None:
    with run_server(is_ready=False) as server:
        server.state.report_progress("load_weights", 0.5)
        response = server.client.get("/health")
        assert response.status_code == 503
        assert response.json() == {"status": "starting", "phase": "load_weights", "progress": 0.5}
        assert int(response.headers["retry-after"]) > 0
        assert server.client.get("/ready").status_code == 503
        assert server.client.get("/live").status_code == 200


def test_work_is_refused_with_503_while_the_engine_starts() -> None:
    with run_server(is_ready=False) as server:
        for response in (server.chat(), server.complete(), server.client.get("/v1/models")):
            assert response.status_code == 503
            assert response.json()["error"]["type"] == "ServiceUnavailableError"
            assert "retry-after" in response.headers


def test_health_answers_200_once_work_is_taken(shared_server: RunningServer) -> None:
    for path, status in (("/health", "ready"), ("/ready", "ready"), ("/live", "live")):
        response = shared_server.client.get(path)
        assert (response.status_code, response.json()) == (200, {"status": status})


def test_draining_turns_readiness_off_and_refuses_work() -> None:
    with run_server() as server:
        server.state.status = ServerStatus.DRAINING
        assert server.client.get("/health").json() == {"status": "draining"}
        assert server.client.get("/health").status_code == 503
        assert server.chat().status_code == 503
        assert server.client.get("/live").status_code == 200


def test_a_dead_core_turns_health_to_503_and_ends_work_with_an_error() -> None:
    with run_server() as server:
        server.on_loop(lambda: server.core.die("killed by signal 9 at /secret/path"))
        wait_until(lambda: server.client.get("/health").status_code == 503)
        assert server.client.get("/health").json() == {"status": "dead"}
        answer = server.chat()
        assert answer.status_code == 503
        assert "/secret/path" not in answer.text


def test_version_names_the_release(shared_server: RunningServer) -> None:
    assert shared_server.client.get("/version").json()["version"]
