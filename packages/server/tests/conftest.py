"""Shared by the server's tests: a running server over a core that generates by rule."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# Tests are imported by path, so their folder is not importable by itself.
sys.path.insert(0, str(Path(__file__).parent))

from server_harness import RunningServer, run_server


@pytest.fixture(scope="module")
def shared_server() -> Iterator[RunningServer]:
    """One server for all tests of a module that leave it as they found it; idle again afterwards."""
    with run_server() as server:
        yield server
        server.wait_idle()
