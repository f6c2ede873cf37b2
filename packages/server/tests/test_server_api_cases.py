"""One request per line of `api_cases.json`: its status, its envelope, and the server well afterwards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from server_harness import RunningServer

CASES: list[dict[str, Any]] = json.loads((Path(__file__).parent / "api_cases.json").read_text())


def send(server: RunningServer, case: dict[str, Any]) -> Any:
    if "raw" in case:
        headers = {"Content-Type": "application/json"}
        return server.client.post(case["path"], content=case["raw"].encode(), headers=headers)
    body = case.get("body")
    if "repeat" in case:
        text = case["repeat"]["unit"] * case["repeat"]["times"]
        is_chat = case["path"].endswith("chat/completions")
        body = body | ({"messages": [{"role": "user", "content": text}]} if is_chat else {"prompt": text})
    return server.client.request(case.get("method", "POST"), case["path"], json=body)


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_request(shared_server: RunningServer, case: dict[str, Any]) -> None:
    response = send(shared_server, case)
    assert response.status_code == case["status"], response.text
    assert response.headers["x-request-id"]
    if response.status_code == 200:
        if "usage_prompt_tokens" in case:
            assert response.json()["usage"]["prompt_tokens"] == case["usage_prompt_tokens"]
        return
    assert response.headers["content-type"] == "application/json"
    error = response.json()["error"]
    assert response.json() == {"error": error}
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["type"], error["code"]) == (case["type"], case["status"])
    assert error["param"] == case.get("param", error["param"])
    assert case.get("message", "") in error["message"]
    assert error["message"].strip()


def test_the_server_is_well_after_all_of_them(shared_server: RunningServer) -> None:
    for case in CASES:
        assert send(shared_server, case).status_code < 500
    assert shared_server.chat().status_code == 200
    shared_server.wait_idle()


def test_a_405_names_the_methods_that_the_route_takes(shared_server: RunningServer) -> None:
    response = shared_server.client.get("/v1/chat/completions")
    assert (response.status_code, response.headers["allow"]) == (405, "POST")


def test_a_million_answers_are_refused_in_no_time(shared_server: RunningServer) -> None:
    response = shared_server.chat(n=1_000_000, temperature=1.0)
    assert response.status_code == 400
    assert response.elapsed.total_seconds() < 1
