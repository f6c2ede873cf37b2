"""Pagoda's own folder: downloaded models and caches, private to one user.

What lies there is trusted by later runs, so the folder belongs to the user alone. Knows nothing of what is
kept in it.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from engine.types.errors import ConfigError

HOME_VARIABLE = "PAGODA_HOME"


def open_home(*parts: str) -> Path:
    """Return a folder under `$PAGODA_HOME` (default `~/.cache/pagoda`), made if needed, mode 0700.

    Raises:
        ConfigError: it cannot be made, or belongs to another user.
    """
    home = Path(os.environ.get(HOME_VARIABLE) or "~/.cache/pagoda").expanduser().absolute()
    folder = home
    try:
        _open_private(home)
        for part in parts:
            folder = folder / part
            _open_private(folder)
    except OSError as error:
        raise ConfigError(
            f"{folder} cannot be used as Pagoda's folder: {error.strerror}; set {HOME_VARIABLE} to a folder "
            "that "
            "you can write to.",
            key=HOME_VARIABLE,
        ) from error
    return folder


def _open_private(folder: Path) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.stat()
    if status.st_uid != os.geteuid():
        raise ConfigError(
            f"{folder} belongs to another user (uid {status.st_uid}), who could change what is kept there; "
            "set "
            f"{HOME_VARIABLE} to a folder of your own.",
            key=HOME_VARIABLE,
        )
    if stat.S_IMODE(status.st_mode) & 0o077:
        folder.chmod(0o700)
