"""The two sockets between a client and its core: what goes over them, how large, and what is refused.

Messages are typed msgpack (types/wire.py). Sockets are `ipc://` in a folder that only their owner can enter.
Nothing here blocks.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import zmq

from engine.config.engine_config import EngineConfig
from engine.types.errors import EngineError, InvalidRequestError
from engine.types.wire import AddRequests, ClientToCore, CoreToClient, EngineCoreRequest, UtilityResult

MAX_MESSAGE_BYTES = 256 * 2**20
"""Either way. A prompt of a million ids takes 5 MB; the rest is room for logprobs."""
HIGH_WATER_MARK = 4096
"""Messages a socket holds for a peer that does not read; then sending fails at once."""
_MAX_IPC_PATH_BYTES = 100
"""Linux allows 107 bytes in the address of a Unix socket."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreSetup:
    """What a core process is told over its standard input: everything, once."""

    config: EngineConfig
    to_core: str
    """Address of the client's sending socket."""
    to_client: str
    """Address of the client's receiving socket."""
    parent_pid: int
    dies_with_thread: bool
    """Whether the thread that started the process lasts as long as the client's process does."""
    plugin_packages: list[str] = field(default_factory=list)
    import_path: list[str] = field(default_factory=list)
    """The client's `sys.path`, so that both find the same code."""


def encode_setup(setup: CoreSetup) -> bytes:
    """Return the setup as msgpack."""
    return msgspec.msgpack.encode(setup)


def decode_setup(data: bytes) -> CoreSetup:
    """Return the setup that `encode_setup` wrote."""
    return msgspec.msgpack.decode(data, type=CoreSetup)


class SocketFolder:
    """A fresh folder that only its owner can enter, for the sockets of one core."""

    def __init__(self) -> None:
        self.path = tempfile.mkdtemp(prefix="pagoda-")
        if len(os.fsencode(self.path)) + len("/to_client") > _MAX_IPC_PATH_BYTES:
            os.rmdir(self.path)
            self.path = tempfile.mkdtemp(prefix="pagoda-", dir="/tmp")
        self.to_core = f"ipc://{self.path}/to_core"
        self.to_client = f"ipc://{self.path}/to_client"

    def remove(self) -> None:
        """Delete the folder and what is in it; safe to call twice."""
        shutil.rmtree(self.path, ignore_errors=True)


def bind_sockets(to_core: zmq.Socket[Any], from_core: zmq.Socket[Any], folder: SocketFolder) -> None:
    """Bind both sockets of a client inside the folder."""
    for socket, address in ((to_core, folder.to_core), (from_core, folder.to_client)):
        configure(socket)
        socket.bind(address)


def configure(socket: zmq.Socket[Any]) -> None:
    """Bound a socket: queue length, message size, and no waiting for a peer at the end."""
    socket.setsockopt(zmq.SNDHWM, HIGH_WATER_MARK)
    socket.setsockopt(zmq.RCVHWM, HIGH_WATER_MARK)
    socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
    socket.setsockopt(zmq.LINGER, 0)


class MessageTooLargeError(EngineError):
    """A message exceeds what the other side accepts."""


_encoder = msgspec.msgpack.Encoder()
_from_core = msgspec.msgpack.Decoder(CoreToClient)
_from_client = msgspec.msgpack.Decoder(ClientToCore)


def encode(message: ClientToCore | CoreToClient) -> bytes:
    """Return a message as bytes.

    Raises:
        MessageTooLargeError: it is larger than the peer takes.
    """
    data = _encoder.encode(message)
    if len(data) > MAX_MESSAGE_BYTES:
        raise MessageTooLargeError(
            f"a message of {len(data)} bytes exceeds the limit of {MAX_MESSAGE_BYTES}."
        )
    return data


def decode_from_core(data: bytes) -> CoreToClient:
    """Return the message of a core.

    Raises:
        msgspec.ValidationError: it is none.
    """
    return _from_core.decode(data)


def decode_from_client(data: bytes) -> ClientToCore:
    """Return the message of a client.

    Raises:
        msgspec.ValidationError: it is none, or a request in it is malformed; `split_requests` tells which.
    """
    return _from_client.decode(data)


def encode_requests(requests: Sequence[EngineCoreRequest]) -> list[bytes]:
    """Return messages that carry these requests, each small enough for the core.

    Raises:
        InvalidRequestError: a single request is too large.
    """
    try:
        return [encode(AddRequests(list(requests)))]
    except MessageTooLargeError as error:
        if len(requests) == 1:
            raise InvalidRequestError(f"the request is too large: {error}") from error
    half = len(requests) // 2
    return encode_requests(requests[:half]) + encode_requests(requests[half:])


def unwrap_result(result: UtilityResult) -> bool | int | float | str | None:
    """Return the result of a control call.

    Raises:
        InvalidRequestError: the core refused the call.
    """
    if result.error is not None:
        raise InvalidRequestError(result.error, param="method")
    return result.result


class _RawAddRequests(msgspec.Struct, array_like=True, tag="add"):
    requests: list[msgspec.Raw]


def split_requests(data: bytes) -> tuple[list[EngineCoreRequest], dict[str, str]]:
    """Take apart a message of requests that did not decode as a whole.

    Returns:
        The well-formed requests, and per malformed request what is wrong, by id.

    Raises:
        msgspec.ValidationError: it is no message of requests, or one has no readable id.
    """
    good: list[EngineCoreRequest] = []
    bad: dict[str, str] = {}
    for raw in msgspec.msgpack.decode(data, type=_RawAddRequests).requests:
        try:
            good.append(msgspec.msgpack.decode(raw, type=EngineCoreRequest))
        except msgspec.ValidationError as error:
            bad[_read_request_id(raw)] = str(error)
    return good, bad


def _read_request_id(raw: msgspec.Raw) -> str:
    fields = msgspec.msgpack.decode(raw)
    if not isinstance(fields, list) or not fields or not isinstance(fields[0], str):
        raise msgspec.ValidationError("a request without a readable id")
    return fields[0]
