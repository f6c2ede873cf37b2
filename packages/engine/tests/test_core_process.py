"""The core as a process: round trips, every kind of death, and nothing left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
import psutil
import pytest
from core_scripted import EOS, build_config, build_wire_request, expected_tokens
from engine.core import transport
from engine.core.async_process_client import AsyncProcessClient
from engine.core.client import build_async_client, build_client
from engine.core.client_base import CoreClient
from engine.core.process_client import ProcessClient
from engine.types.errors import EngineDeadError
from engine.types.wire import AddRequests, FinishReason, SequenceFinished

TESTS = Path(__file__).parent


@pytest.fixture(autouse=True)
def _no_process_left() -> Iterator[None]:
    before = set(psutil.Process().children(recursive=True))
    yield
    left = [child for child in psutil.Process().children(recursive=True) if child not in before]
    assert not left, f"processes left: {left}"


def collect(
    client: CoreClient, request_ids: Iterable[str]
) -> tuple[dict[str, list[int]], dict[str, SequenceFinished]]:
    """Read outputs until each request ended; return tokens and ends by id."""
    tokens: dict[str, list[int]] = {request_id: [] for request_id in request_ids}
    ends: dict[str, SequenceFinished] = {}
    deadline_s = time.monotonic() + 20
    while len(ends) < len(tokens):
        assert time.monotonic() < deadline_s
        outputs = client.get_outputs(timeout_s=5.0)
        for request_id, token_id in zip(outputs.request_ids, outputs.token_ids, strict=True):
            tokens[request_id].append(token_id)
        for end in outputs.finished:
            ends[end.request_id] = end
    return tokens, ends


def test_in_process_and_process_yield_the_scripted_tokens() -> None:
    prompts = {f"r{i}": list(range(3, 10 + 3 * i)) for i in range(12)}
    expected = {
        name: expected_tokens(prompt, 0, 20, stops=frozenset({EOS})) for name, prompt in prompts.items()
    }
    for name in ("InprocClient", "ProcessClient"):
        client = build_client(build_config(transport=f"engine.core.client.{name}"))
        phases: set[str] = set()
        info = client.start(lambda phase, fraction, phases=phases: phases.add(phase))
        assert info.vocab_size == 1000
        assert info.num_blocks == 64
        assert phases == {"init_device", "load_weights", "allocate_cache"} == set(info.startup_phases_s)
        assert client.is_alive
        assert (client.pid == os.getpid()) == (name == "InprocClient")
        assert client.call("ping") is True
        client.add_requests([build_wire_request(n, p, max_tokens=20) for n, p in prompts.items()])
        tokens, ends = collect(client, prompts)
        assert tokens == expected
        assert {end.reason.text for end in ends.values()} <= {"stop", "length"}
        assert client.call("reset_prefix_cache") is True
        client.shutdown()
        client.shutdown()
        assert not client.is_alive


def test_malformed_requests_end_alone() -> None:
    client = ProcessClient(build_config(), ["core_scripted"])
    client.start()
    try:
        good = build_wire_request("good", [5, 6, 7], max_tokens=3, eos=[])
        plain = msgspec.msgpack.decode(transport.encode(AddRequests([good, good, good])))
        plain[1][0][0] = "temperature"
        plain[1][0][2]["temperature"] = 99.0
        plain[1][1][0] = "unknown-field"
        plain[1][1][2]["shell"] = "rm"
        client._send(msgspec.msgpack.encode(plain))
        client._send(b"\xc1 no message")
        client._send(msgspec.msgpack.encode(["unknown", 1]))
        client.add_requests(
            [
                build_wire_request("negative", [5, -1], max_tokens=3),
                build_wire_request("beyond", [5, 1000], max_tokens=3),
                build_wire_request("empty", [], max_tokens=3),
                build_wire_request("long", [5] * 128, max_tokens=3),
                build_wire_request("stop", [5], max_tokens=3, stop_token_ids=[1000]),
                build_wire_request("bias", [5], max_tokens=3, logit_bias={1000: 1.0}),
                build_wire_request("logprobs", [5], max_tokens=3, logprobs=21),
            ]
        )
        names = [
            "temperature",
            "unknown-field",
            "good",
            "negative",
            "beyond",
            "empty",
            "long",
            "stop",
            "bias",
        ]
        tokens, ends = collect(client, [*names, "logprobs"])
        assert [name for name, end in ends.items() if end.reason is not FinishReason.ERROR] == ["good"]
        assert len(tokens["good"]) == 3
        assert "temperature" in ends["temperature"].message
        assert "-1" in ends["negative"].message
    finally:
        client.shutdown()


@pytest.mark.parametrize(
    ("behaviour", "cause"),
    [
        ("fail_step", "RuntimeError: a kernel failed"),
        ("fail_step_and_hang", "RuntimeError: a kernel failed"),
        ("kill_step", "SIGKILL"),
        ("print_and_exit_step", "exited with code 7; it last said: the library gives up"),
    ],
)
def test_death_in_a_step_reaches_both_clients_with_its_cause(behaviour: str, cause: str) -> None:
    config = build_config(behaviour=behaviour)
    request = build_wire_request("r", [5], max_tokens=3)
    client = ProcessClient(config, ["core_scripted"])
    client.start()
    client.add_requests([request])
    with pytest.raises(EngineDeadError, match=cause):
        client.get_outputs(timeout_s=10)
    with pytest.raises(EngineDeadError, match=cause):
        client.add_requests([request])
    client.shutdown()

    async def scenario() -> None:
        client = AsyncProcessClient(config, ["core_scripted"])
        await client.start()
        client.add_requests([request])
        for _ in range(2):
            with pytest.raises(EngineDeadError, match=cause):
                await client.get_outputs()
        assert not client.is_alive
        with pytest.raises(EngineDeadError, match=cause):
            client.add_requests([request])
        client.abort_requests(["r"])
        await client.shutdown()

    asyncio.run(scenario())


def test_failed_start_tells_the_cause() -> None:
    with pytest.raises(EngineDeadError, match="RuntimeError: the device is on fire"):
        build_client(build_config(behaviour="fail_start")).start()
    with pytest.raises(EngineDeadError, match=r"^the KV cache holds 7 blocks .* at most 28"):
        asyncio.run(build_async_client(build_config(num_blocks=8)).start())


def test_idle_core_killed_is_noticed_at_once() -> None:
    async def scenario() -> None:
        client = AsyncProcessClient(build_config(), ["core_scripted"])
        await client.start()
        waiting = asyncio.create_task(client.get_outputs())
        calling = asyncio.create_task(client.call("ping"))
        assert await calling is True
        start_s = time.monotonic()
        os.kill(client.pid, signal.SIGKILL)
        with pytest.raises(EngineDeadError, match="killed by SIGKILL"):
            await waiting
        assert time.monotonic() - start_s < 2.0
        with pytest.raises(EngineDeadError):
            await client.call("ping")
        await client.shutdown()

    asyncio.run(scenario())


def test_abort_while_a_step_is_in_flight_drops_its_result() -> None:
    async def scenario() -> None:
        client = AsyncProcessClient(build_config(step_s=0.02), ["core_scripted"])
        await client.start()
        client.add_requests([build_wire_request("r", [5], max_tokens=100, eos=[])])
        outputs = await client.get_outputs()
        assert outputs.started[0].request_id == "r"
        client.abort_requests(["r", "unknown"])
        while not outputs.finished:
            outputs = await client.get_outputs()
        assert outputs.finished[0].reason is FinishReason.ABORT
        assert outputs.request_ids == []
        assert outputs.stats.num_used_blocks == 0
        await client.shutdown()

    asyncio.run(scenario())


def test_shutdown_ends_running_requests() -> None:
    async def scenario() -> None:
        client = AsyncProcessClient(build_config(step_s=0.01), ["core_scripted"])
        await client.start()
        client.add_requests([build_wire_request("r", [5], max_tokens=120, eos=[])])
        await client.get_outputs()
        await client.shutdown()
        outputs = await client.get_outputs()
        while not outputs.finished:
            outputs = await client.get_outputs()
        assert [end.reason for end in outputs.finished] == [FinishReason.ABORT]
        with pytest.raises(EngineDeadError, match="shut down"):
            await client.get_outputs()

    asyncio.run(scenario())


def test_socket_folder_is_private_short_and_removed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    for base in (tmp_path, deep):
        monkeypatch.setattr(tempfile, "tempdir", str(base))
        folder = transport.SocketFolder()
        assert Path(folder.path).stat().st_mode & 0o777 == 0o700
        assert len(folder.to_client) <= 107
        folder.remove()
        folder.remove()
        assert not Path(folder.path).exists()


def test_sigterm_stops_the_core_and_sigint_does_not() -> None:
    client = ProcessClient(build_config(), ["core_scripted"])
    client.start()
    os.kill(client.pid, signal.SIGINT)
    assert client.call("ping") is True
    os.kill(client.pid, signal.SIGTERM)
    with pytest.raises(EngineDeadError, match="stopped by SIGTERM"):
        client.get_outputs(timeout_s=10)
    assert client._process.has_exited.wait(5)
    assert client._process._process.returncode == 128 + signal.SIGTERM
    client.shutdown()


def test_sigterm_while_starting_stops_at_once() -> None:
    client = ProcessClient(build_config(behaviour="hang_start"), ["core_scripted"])
    with pytest.raises(EngineDeadError, match="stopped by SIGTERM"):
        client.start(lambda phase, fraction: os.kill(client.pid or 0, signal.SIGTERM))
    client.shutdown()


def test_core_is_out_of_reach_of_signals_to_our_group() -> None:
    client = ProcessClient(build_config(), ["core_scripted"])
    client.start()
    assert client.pid is not None
    assert os.getpgid(client.pid) != os.getpgid(0)
    client.shutdown()


def test_shutdown_while_starting_ends_the_start() -> None:
    async def scenario() -> None:
        client = AsyncProcessClient(build_config(behaviour="hang_start"), ["core_scripted"])
        seen = asyncio.Event()
        starting = asyncio.create_task(client.start(lambda phase, fraction: seen.set()))
        await seen.wait()
        await client.shutdown()
        with pytest.raises(EngineDeadError, match="shut down"):
            await starting

    asyncio.run(scenario())


def test_cancelled_start_leaves_nothing() -> None:
    async def scenario() -> None:
        client = AsyncProcessClient(build_config(behaviour="hang_start"), ["core_scripted"])
        seen = asyncio.Event()
        starting = asyncio.create_task(client.start(lambda phase, fraction: seen.set()))
        await seen.wait()
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        assert not Path(client._process.folder.path).exists()

    asyncio.run(scenario())


@pytest.mark.parametrize("thread", ["main", "other"])
def test_core_dies_with_its_parent_and_leaves_no_folder(thread: str, tmp_path: Path) -> None:
    script = textwrap.dedent(
        f"""
        import sys, threading, signal, os
        sys.path.insert(0, {str(TESTS)!r})
        from core_scripted import build_config
        from engine.core.process_client import ProcessClient
        def run():
            client = ProcessClient(build_config(), ["core_scripted"])
            client.start()
            print(client.pid, flush=True)
            return client
        if {thread!r} == "main":
            keep = run()
        else:
            keep = []
            worker = threading.Thread(target=lambda: keep.append(run()))
            worker.start()
            worker.join()
            # The thread that started the core is gone; the core must not be.
            assert keep[0].call("ping")
            print("alive", flush=True)
        signal.pause()
        """
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    parent = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env=environment
    )
    try:
        core = psutil.Process(int(parent.stdout.readline()))
        if thread == "other":
            assert parent.stdout.readline() == "alive\n"
    finally:
        parent.kill()
        parent.wait()
        parent.stdout.close()
    try:
        core.wait(timeout=5)
    except psutil.TimeoutExpired:
        core.kill()
        raise
    assert list(tmp_path.iterdir()) == []


def test_import_without_torch() -> None:
    modules = [
        "engine.scheduler.scheduler",
        "engine.kv_cache.manager",
        "engine.kv_cache.planner",
        "engine.core.client",
        "engine.core.process",
        "engine.observability.logging",
    ]
    code = f"import sys, {', '.join(modules)}; sys.exit('torch' in sys.modules or 'triton' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_start_that_fails_before_there_is_a_process_shows_its_own_cause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(setup: object) -> bytes:
        raise OverflowError("too large for the wire")

    monkeypatch.setattr("engine.core.supervisor.encode_setup", fail)

    async def scenario() -> None:
        client = AsyncProcessClient(build_config(), ["core_scripted"])
        with pytest.raises(OverflowError, match="too large for the wire"):
            await client.start()
        assert not Path(client._process.folder.path).exists()
        await client.shutdown()

    asyncio.run(asyncio.wait_for(scenario(), 20))
    client = ProcessClient(build_config(), ["core_scripted"])
    with pytest.raises(OverflowError, match="too large for the wire"):
        client.start()
    client.shutdown()
