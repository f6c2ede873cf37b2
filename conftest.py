"""What holds for every test: loopback only, nothing left behind, GPU tests where there is a GPU.

Servers and engine cores run as child processes; one that outlives the session is a failure, not litter.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

_LOOPBACK = ("127.", "::1", "localhost", "0.0.0.0", "::")
_PATIENCE_S = 10.0
# Helpers of the standard library that live as long as the process.
_OTHER_CHILDREN = ("resource_tracker", "forkserver")
_OTHER_THREADS = ("MainThread", "asyncio_", "ThreadPoolExecutor", "AnyIO worker", "tqdm", "pytest_timeout")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip GPU tests on a machine without a GPU; torch is asked only where there are such tests."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    import torch

    if not torch.cuda.is_available():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture(scope="session", autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    """Fail the session where a child process or a thread of ours is still there at its end."""
    yield
    deadline = time.monotonic() + _PATIENCE_S
    while (left := _children() + _threads()) and time.monotonic() < deadline:
        threading.Event().wait(0.05)
    assert not left, f"still there at the end of the tests: {left}"


@pytest.fixture(scope="session", autouse=True)
def loopback_only(nothing_is_left_behind: None) -> Iterator[None]:
    """Refuse connections to anything but this machine."""
    connect, connect_ex = socket.socket.connect, socket.socket.connect_ex

    def guarded_connect(self: socket.socket, address: object) -> None:
        _check_address(self, address)
        connect(self, address)  # type: ignore[arg-type]

    def guarded_connect_ex(self: socket.socket, address: object) -> int:
        _check_address(self, address)
        return connect_ex(self, address)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", guarded_connect)
        patch.setattr(socket.socket, "connect_ex", guarded_connect_ex)
        yield


def _check_address(sock: socket.socket, address: object) -> None:
    if sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    host = str(address[0]) if isinstance(address, tuple) and address else str(address)
    if not host.startswith(_LOOPBACK[0]) and host not in _LOOPBACK:
        raise PermissionError(f"a test may reach this machine only, not {host!r}")


def _children() -> list[str]:
    """Command lines of this process's children, zombies included; Linux only."""
    found: list[str] = []
    for task in Path("/proc/self/task").glob("*/children"):
        for pid in task.read_text().split():
            try:
                command = (
                    (Path("/proc") / pid / "cmdline")
                    .read_bytes()
                    .replace(b"\0", b" ")
                    .decode(errors="replace")
                )
            except OSError:
                continue  # gone meanwhile
            if not any(name in command for name in _OTHER_CHILDREN):
                found.append(f"process {pid}: {command.strip() or 'zombie'}")
    return found


def _threads() -> list[str]:
    """Names of threads that somebody forgot; a library's daemons are its own affair."""
    own = ("core", "parent-watch", "prepare", "server", "engine", "pagoda")
    return [
        f"thread {thread.name}"
        for thread in threading.enumerate()
        if not thread.name.startswith(_OTHER_THREADS) and (not thread.daemon or thread.name.startswith(own))
    ]
