"""The folder compiled code is kept in, and files in it that are used only if they are whole.

Code loaded from here runs with our rights, so the folder belongs to this user and admits nobody else. Knows
folders, locks and checksums; nothing of compilers.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class FolderError(RuntimeError):
    """The folder is not safe to load code from, or its lock was not to be had; the message says why."""


def prepare_code_folder(name: str) -> Path:
    """Return the folder `name` inside PAGODA_HOME (default ~/.cache/pagoda), made 0700 and checked.

    Raises: FolderError where it belongs to somebody else or is not a folder; OSError where it cannot be made.
    """
    home = os.environ.get("PAGODA_HOME")
    root = Path(home) if home else Path.home() / ".cache" / "pagoda"
    root.parent.mkdir(parents=True, exist_ok=True)
    for folder in (root, root / name):
        folder.mkdir(mode=0o700, exist_ok=True)
        _check_private(folder)
    return root / name


def read_verified(path: Path) -> bool:
    """Return whether the file is there and is byte for byte what was stored."""
    try:
        return _stamp_of(path).read_text() == _digest(path)
    except FileNotFoundError:
        return False


def store_verified(source: Path, path: Path) -> None:
    """Move a finished file to `path` with a stamp; a reader sees all of it or does not accept it."""
    stamp = source.with_name(source.name + ".stamp")
    stamp.write_text(_digest(source))
    os.replace(source, path)
    # The stamp last: until it is there, the file does not count.
    os.replace(stamp, _stamp_of(path))


@contextmanager
def locked(path: Path, *, timeout_s: float) -> Iterator[None]:
    """Hold the lock file while inside; the system releases it if the holder dies.

    Raises: FolderError after `timeout_s`.
    """
    deadline = time.monotonic() + timeout_s
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        while not _try_lock(descriptor):
            if time.monotonic() > deadline:
                raise FolderError(f"{path} was held by another process for {timeout_s:.0f} s")
            time.sleep(0.05)
        yield
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _check_private(folder: Path) -> None:
    status = os.stat(folder, follow_symlinks=False)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise FolderError(f"{folder} is not a folder of this user; set PAGODA_HOME to one that is")
    if stat.S_IMODE(status.st_mode) & 0o077:
        # Ours, but made by something with a laxer mask.
        folder.chmod(0o700)


def _stamp_of(path: Path) -> Path:
    return path.with_name(path.name + ".sha256")


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
