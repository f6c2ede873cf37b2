"""Processes that this one started, for an end that cannot wait for the thread that waits for them."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path


def kill_children() -> None:
    """Kill the direct child processes; does nothing where the kernel does not list them."""
    for tasks in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for pid in tasks.read_text(encoding="ascii").split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
