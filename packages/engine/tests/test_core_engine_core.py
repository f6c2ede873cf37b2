"""The engine core in this process: starting, refusing requests one by one, control calls, failures."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import msgspec
import pytest
from core_scripted import EOS, VOCAB_SIZE, build_config, build_wire_request, expected_tokens
from engine.config.component import ComponentConfig
from engine.config.engine_config import EngineConfig
from engine.config.model import ModelConfig
from engine.core.client import InprocClient, build_async_client, build_client
from engine.core.engine_core import EngineCore
from engine.core.validation import RequestLimits, build_request
from engine.types.errors import ConfigError, EngineDeadError, InvalidRequestError
from engine.types.wire import EngineCoreRequest, FinishReason

LIMITS = RequestLimits(vocab_size=100, max_model_len=20, max_logprobs=5)


@pytest.fixture
def core() -> Iterator[EngineCore]:
    core = EngineCore(build_config(), plugin_packages=["core_scripted"])
    core.start()
    yield core
    core.shutdown()


def run(core: EngineCore) -> tuple[dict[str, list[int]], dict[str, FinishReason]]:
    tokens: dict[str, list[int]] = {}
    ends: dict[str, FinishReason] = {}
    for _ in range(1000):
        if not core.has_work():
            return tokens, ends
        outputs = core.step()
        for request_id, token_id in zip(outputs.request_ids, outputs.token_ids, strict=True):
            tokens.setdefault(request_id, []).append(token_id)
        ends |= {end.request_id: end.reason for end in outputs.finished}
    raise AssertionError("the core never came to rest")


def test_start_reports_phases_and_facts() -> None:
    seen: list[tuple[str, float]] = []
    core = EngineCore(
        build_config(num_blocks=40),
        lambda phase, fraction: seen.append((phase, fraction)),
        plugin_packages=["core_scripted"],
    )
    info = core.start()
    assert [phase for phase, _ in itertools.groupby(seen, key=lambda report: report[0])] == list(
        info.startup_phases_s
    )
    assert (info.num_blocks, info.block_size, info.max_model_len, info.vocab_size) == (40, 4, 128, VOCAB_SIZE)
    assert info.kv_cache_bytes == 40 * 2 * 4 * 8 * 4
    core.shutdown()
    core.shutdown()


def test_step_without_work_returns_at_once(core: EngineCore) -> None:
    outputs = core.step()
    assert outputs.request_ids == []
    assert outputs.finished == []
    assert not core.has_work()


def test_bad_request_ends_alone(core: EngineCore) -> None:
    good = build_wire_request("good", [5, 6], max_tokens=4, eos=[])
    bad = [
        msgspec.structs.replace(good, request_id="ids", prompt_token_ids=[5, VOCAB_SIZE]),
        msgspec.structs.replace(good, request_id="text", prompt_token_ids=["a"]),
        msgspec.structs.replace(good, request_id="ragged", prompt_token_ids=[[1], [1, 2]]),
        msgspec.structs.replace(good, request_id="salt", cache_salt="\ud800"),
        msgspec.structs.replace(good, request_id="params", params=None),
    ]
    core.add_requests([bad[0], good, *bad[1:]])
    tokens, ends = run(core)
    assert tokens == {"good": expected_tokens([5, 6], 0, 4, stops=frozenset())}
    assert {name for name, reason in ends.items() if reason is FinishReason.ERROR} == {
        request.request_id for request in bad
    }


def test_id_in_use_ends_both(core: EngineCore) -> None:
    core.add_requests([build_wire_request("r", [5]), build_wire_request("other", [5], max_tokens=2)])
    core.step()
    core.add_requests([build_wire_request("r", [6])])
    _, ends = run(core)
    assert ends["r"] is FinishReason.ERROR
    assert ends["other"] is not FinishReason.ERROR


def test_requests_without_a_seed_get_different_ones_that_follow_the_configured_seed() -> None:
    def run_with(seed: int) -> list[list[int]]:
        config = replace(build_config(), model=ModelConfig(max_model_len=128, seed=seed))
        core = EngineCore(config, plugin_packages=["core_scripted"])
        core.start()
        core.add_requests(
            [build_wire_request(f"r{i}", [5], max_tokens=5, eos=[], seed=None) for i in range(3)]
        )
        tokens, _ = run(core)
        core.shutdown()
        return [tokens[f"r{i}"] for i in range(3)]

    first = run_with(0)
    assert first == run_with(0)
    assert first != run_with(1)
    assert len({tuple(tokens) for tokens in first}) == 3


def test_control_calls(core: EngineCore) -> None:
    assert core.call("ping") is True
    core.add_requests([build_wire_request("a", [5] * 9, max_tokens=1)])
    run(core)
    assert core.call("reset_prefix_cache") is True
    core.add_requests([build_wire_request("b", [5] * 9, max_tokens=1)])
    assert core.step().started[0].num_cached_tokens == 0
    with pytest.raises(InvalidRequestError, match="'shutdown' is unknown"):
        core.call("shutdown")


def test_executor_from_elsewhere_needs_the_operators_word() -> None:
    with pytest.raises(ConfigError, match="outside the allowed packages"):
        EngineCore(build_config()).start()
    config = build_config()
    for target in ("core_scripted.build_config", "engine.core.client.InprocClient"):
        strange = replace(config, executor=ComponentConfig(target=target))
        with pytest.raises((ConfigError, TypeError)):
            EngineCore(strange, plugin_packages=["core_scripted"]).start()


def test_unresolved_configuration_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"model\.max_model_len is null"):
        EngineCore(EngineConfig(model=ModelConfig())).start()


def test_failed_step_ends_the_in_process_client_with_the_cause() -> None:
    client = build_client(build_config(transport="engine.core.client.InprocClient", behaviour="fail_step"))
    client.start()
    client.add_requests([build_wire_request("r", [5])])
    for _ in range(2):
        with pytest.raises(EngineDeadError, match="RuntimeError: a kernel failed"):
            client.get_outputs()
    assert not client.is_alive
    client.shutdown()


def test_client_is_what_transport_names() -> None:
    config = build_config(transport="engine.core.client.InprocClient")
    assert isinstance(build_client(config), InprocClient)
    with pytest.raises(ConfigError, match="transport=ipc"):
        build_async_client(config)
    with pytest.raises(ConfigError, match="is no CoreClient"):
        build_client(build_config(transport="engine.core.engine_core.EngineCore"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prompt_token_ids": []}, "empty"),
        ({"prompt_token_ids": [-1]}, "token id -1"),
        ({"prompt_token_ids": [100]}, "ids 0 to 99"),
        ({"prompt_token_ids": [True]}, "integers"),
        ({"prompt_token_ids": [1.5]}, "integers"),
        ({"prompt_token_ids": [2**63]}, "integers"),
        ({"prompt_token_ids": [1] * 20}, "19 at most"),
        ({"request_id": ""}, "request_id"),
        ({"request_id": "x" * 257}, "request_id"),
        ({"cache_salt": "x" * 1025}, "cache_salt"),
        ({"arrival_time_s": float("nan")}, "arrival_time_s"),
        ({"eos_token_ids": [100]}, "eos_token_ids"),
        ({"eos_token_ids": [1] * 129}, "eos_token_ids"),
        ({"bad_words_token_ids": [[]]}, "bad_words_token_ids"),
        ({"bad_words_token_ids": [[100]]}, "bad_words_token_ids"),
        ({"bad_words_token_ids": [[1]] * 257}, "257 sequences"),
    ],
)
def test_validation_names_what_is_wrong(change: dict[str, object], message: str) -> None:
    wire = msgspec.structs.replace(build_wire_request("r", [1]), **change)
    with pytest.raises(InvalidRequestError, match=message):
        build_request(wire, LIMITS, 0)


@pytest.mark.parametrize(
    "params",
    [
        {"stop_token_ids": [100]},
        {"allowed_token_ids": [100]},
        {"logit_bias": {100: 1.0}},
        {"logprob_token_ids": [100]},
        {"logprobs": 6},
        {"logprobs": -1},
        {"prompt_logprobs": 6},
    ],
)
def test_validation_checks_every_list_of_ids(params: dict[str, object]) -> None:
    with pytest.raises(InvalidRequestError, match=next(iter(params))):
        build_request(build_wire_request("r", [1], **params), LIMITS, 0)


def test_limits_are_combined() -> None:
    def built(**arguments: object) -> EngineCoreRequest:
        return build_wire_request("r", [1] * 15, **arguments)

    assert build_request(built(max_tokens=3), LIMITS, 0).max_total_tokens == 18
    assert build_request(built(max_tokens=9), LIMITS, 0).max_total_tokens == 20
    assert build_request(built(max_tokens=None), LIMITS, 0).max_total_tokens == 20
    assert build_request(built(seed=None), LIMITS, 77).seed == 77
    assert build_request(built(seed=5), LIMITS, 77).seed == 5
    request = build_request(built(stop_token_ids=[7, EOS]), LIMITS, 0)
    assert request.stop_token_ids == (EOS, 7)
    unlimited = RequestLimits(vocab_size=100, max_model_len=20, max_logprobs=-1)
    assert build_request(built(logprobs=-1), unlimited, 0).params.logprobs == -1
