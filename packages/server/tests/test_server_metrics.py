"""Metrics: names that dashboards know, labels from fixed sets, counts that add up under aborts."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor

import httpx
from scripted_core import NUM_BLOCKS
from server_harness import PATIENCE_S, run_server, wait_until

NAMES = [
    "pagoda_num_requests_running",
    "pagoda_num_requests_waiting",
    "pagoda_kv_cache_usage_perc",
    "pagoda_kv_cache_blocks_used",
    "pagoda_kv_cache_blocks_total",
    "pagoda_prefix_cache_queries_total",
    "pagoda_prefix_cache_hits_total",
    "pagoda_num_preemptions_total",
    "pagoda_prompt_tokens_total",
    "pagoda_prompt_tokens_cached_total",
    "pagoda_generation_tokens_total",
    "pagoda_request_success_total",
    "pagoda_requests_refused_total",
    "pagoda_time_to_first_token_seconds_bucket",
    "pagoda_inter_token_latency_seconds_bucket",
    "pagoda_e2e_request_latency_seconds_bucket",
    "pagoda_request_queue_time_seconds_bucket",
    "pagoda_request_prefill_time_seconds_bucket",
    "pagoda_request_decode_time_seconds_bucket",
    "pagoda_request_prompt_tokens_bucket",
    "pagoda_request_generation_tokens_bucket",
    "pagoda_iteration_tokens_total_bucket",
    "pagoda_startup_phase_seconds",
    "pagoda_http_requests_total",
    "pagoda_http_request_duration_seconds_bucket",
]


def test_every_promised_name_is_there() -> None:
    with run_server() as server:
        server.complete()
        text = server.client.get("/metrics").text
        sampled = {re.split(r"[{ ]", line)[0] for line in text.splitlines() if not line.startswith("#")}
        assert [name for name in NAMES if name not in sampled] == []
        assert "NaN" not in text


def test_the_size_of_the_cache_is_known_before_the_first_request() -> None:
    with run_server() as server:
        # One of the engine's blocks is the null block, which no request gets.
        assert server.metric("pagoda_kv_cache_blocks_total") == NUM_BLOCKS - 1


def test_tokens_and_times_of_a_request_are_counted_once() -> None:
    with run_server() as server:
        server.complete(max_tokens=5)
        server.chat(n=2, max_tokens=3, temperature=1.0)
        assert server.metric("pagoda_generation_tokens_total") == 11
        assert server.metric("pagoda_request_success_total", finished_reason="length") == 2
        assert server.metric("pagoda_time_to_first_token_seconds_count") == 2
        assert server.metric("pagoda_e2e_request_latency_seconds_count") == 2
        assert server.metric("pagoda_inter_token_latency_seconds_count") == 4 + 2 * 2
        assert server.metric("pagoda_startup_phase_seconds", phase="load_weights") == 0.5


def test_half_of_twenty_cut_off_all_are_counted_and_gauges_return_to_zero() -> None:
    with run_server(step_s=0.001, max_num_seqs=4) as server:

        def run(i: int) -> None:
            body = {"prompt": f"p{i}", "max_tokens": 1000 if i % 2 else 6, "stream": True}
            with httpx.stream(
                "POST", f"{server.url}/v1/completions", json=body, timeout=PATIENCE_S
            ) as response:
                for num_lines, _ in enumerate(response.iter_lines()):
                    if i % 2 and num_lines == i % 5:
                        break

        with ThreadPoolExecutor(20) as pool:
            list(pool.map(run, range(20)))
        server.wait_idle()
        wait_until(lambda: server.metric("pagoda_num_requests_running") == 0)
        assert server.metric("pagoda_num_requests_waiting") == 0
        assert server.metric("pagoda_kv_cache_usage_perc") == 0
        assert server.metric("pagoda_request_success_total") == 20
        assert server.metric("pagoda_request_success_total", finished_reason="length") == 10
        assert server.metric("pagoda_e2e_request_latency_seconds_count") == 20


def test_labels_hold_nothing_that_a_client_sent() -> None:
    with run_server() as server:
        server.client.get("/v1/very-private-path")
        server.client.get("/v1/models/very-private-model")
        server.client.request("BREW", "/health")
        server.chat(model="very-private-model")
        text = server.client.get("/metrics").text
        assert "private" not in text
        assert "BREW" not in text
        assert server.metric("pagoda_http_requests_total", route="unmatched") == 1
        assert (
            server.metric("pagoda_http_requests_total", route="/v1/models/{model_id:path}", status="404") == 1
        )
