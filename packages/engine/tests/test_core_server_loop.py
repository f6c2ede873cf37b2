"""The loop of the core process, run in a thread with its sockets in the test's hands."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import msgspec
import pytest
import zmq
from core_scripted import build_config, build_wire_request
from engine.core import process, transport
from engine.core.supervisor import build_setup
from engine.types.wire import (
    AbortRequests,
    AddRequests,
    ClientToCore,
    CoreToClient,
    EngineCoreOutputs,
    EngineReady,
    FinishReason,
    SequenceFinished,
    Shutdown,
    UtilityCall,
    UtilityResult,
)


class Peer:
    """The client's side, bound and bare."""

    def __init__(self, **executor_args: object) -> None:
        self.context = zmq.Context()
        self.folder = transport.SocketFolder()
        self.to_core = self.context.socket(zmq.PUSH)
        self.from_core = self.context.socket(zmq.PULL)
        transport.bind_sockets(self.to_core, self.from_core, self.folder)
        setup = build_setup(build_config(**executor_args), self.folder, ["core_scripted"])
        self.server = process.CoreServer(transport.decode_setup(transport.encode_setup(setup)))
        self.codes: list[int] = []
        self.thread = threading.Thread(target=lambda: self.codes.append(self.server.run()))
        self.thread.start()

    def send(self, message: ClientToCore | bytes) -> None:
        self.to_core.send(message if isinstance(message, bytes) else transport.encode(message))

    def receive(self) -> CoreToClient:
        assert self.from_core.poll(10_000), "the core is silent"
        return transport.decode_from_core(self.from_core.recv())

    def receive_ends(self, count: int) -> dict[str, SequenceFinished]:
        ends: dict[str, SequenceFinished] = {}
        while len(ends) < count:
            message = self.receive()
            if isinstance(message, EngineCoreOutputs):
                ends |= {end.request_id: end for end in message.finished}
        return ends

    def close(self) -> None:
        self.send(Shutdown())
        while self.thread.is_alive():
            if self.from_core.poll(20):
                self.from_core.recv()
        self.to_core.close()
        self.from_core.close()
        self.context.term()
        self.folder.remove()


@pytest.fixture
def connect() -> Iterator[Callable[..., Peer]]:
    peers: list[Peer] = []

    def build(**arguments: object) -> Peer:
        peer = Peer(**arguments)
        peers.append(peer)
        while not isinstance(peer.receive(), EngineReady):
            pass
        return peer

    yield build
    for peer in peers:
        peer.close()
        assert peer.codes == [0]


def wait_until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline_s
        threading.Event().wait(0.005)


def test_strange_bytes_are_refused_and_the_core_goes_on(connect: Callable[..., Peer]) -> None:
    peer = connect()
    for data in (b"", b"\xc1", b"\x93\x01\x02\x03", msgspec.msgpack.encode({"type": "add"})):
        peer.send(data)
    peer.send(msgspec.msgpack.encode(["add", [[7]]]))
    peer.send(msgspec.msgpack.encode(["abort", ["a"], "surplus"]))
    peer.send(UtilityCall(5, "format_disk"))
    answer = peer.receive()
    assert isinstance(answer, UtilityResult)
    assert answer.call_id == 5
    assert "unknown" in (answer.error or "")


def test_client_that_does_not_read_stops_the_steps_not_the_core(
    connect: Callable[..., Peer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "HIGH_WATER_MARK", 2)
    peer = connect()
    # Long ids make large messages, so that the kernel's buffer fills soon too.
    names = [f"{index:04}" + "x" * 250 for index in range(64)]
    peer.send(AddRequests([build_wire_request(name, [5], max_tokens=100, eos=[]) for name in names]))
    wait_until(lambda: len(peer.server._unsent) > process.MAX_UNSENT)
    peer.send(AbortRequests(names))
    ends = peer.receive_ends(len(names))
    aborted = [end for end in ends.values() if end.reason is FinishReason.ABORT]
    assert len(aborted) > len(names) / 2
    assert len(peer.server._unsent) <= process.MAX_UNSENT + 2


def test_logprobs_beyond_a_message_end_their_request_alone(
    connect: Callable[..., Peer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "MAX_MESSAGE_BYTES", 700)
    peer = connect()
    asks = build_wire_request("asks", list(range(3, 103)), max_tokens=9, eos=[], prompt_logprobs=1)
    peer.send(AddRequests([build_wire_request("plain", [5], max_tokens=9, eos=[])]))
    peer.send(AddRequests([asks]))
    ends = peer.receive_ends(2)
    assert ends["plain"].reason is FinishReason.LENGTH
    assert ends["asks"].reason is FinishReason.ERROR
    assert "logprobs" in (ends["asks"].message or "")


def test_many_requests_are_cut_into_messages_that_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    requests = [build_wire_request(f"r{index}", [5] * 20) for index in range(50)]
    monkeypatch.setattr(transport, "MAX_MESSAGE_BYTES", 400)
    messages = transport.encode_requests(requests)
    assert len(messages) > 1
    assert max(len(data) for data in messages) <= 400
    decoded = [transport.decode_from_client(data) for data in messages]
    assert [request for message in decoded for request in message.requests] == requests  # type: ignore[union-attr]
    with pytest.raises(ValueError, match="too large"):
        transport.encode_requests([build_wire_request("r", [5] * 500)])
