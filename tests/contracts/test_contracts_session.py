"""The guards around all tests do guard."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading

import pytest


@pytest.mark.parametrize("address", ["192.0.2.1", "example.invalid", "2001:db8::1"])
@pytest.mark.parametrize("call", ["connect", "connect_ex"])
def test_other_machines_cannot_be_reached(address: str, call: str) -> None:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as sock, pytest.raises(PermissionError, match="this machine only"):
        getattr(sock, call)((address, 80))


def test_loopback_can_be_reached() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as client,
    ):
        assert client.getpeername() == server.getsockname()


def test_forgotten_children_and_threads_are_seen(pytestconfig: pytest.Config) -> None:
    guard = next(
        plugin
        for name, plugin in pytestconfig.pluginmanager.list_name_plugin()
        if hasattr(plugin, "nothing_is_left_behind")
    )
    release = threading.Event()
    thread = threading.Thread(target=release.wait, name="core-forgotten", daemon=True)
    thread.start()
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert any(f"process {child.pid}" in line for line in guard._children())
        assert "thread core-forgotten" in guard._threads()
    finally:
        release.set()
        thread.join()
        child.communicate(b"\n")
    assert not any(f"process {child.pid}" in line for line in guard._children())
    assert "thread core-forgotten" not in guard._threads()
