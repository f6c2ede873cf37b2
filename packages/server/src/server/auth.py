"""API keys: where they come from and how one is told from the right ones.

Keys are kept as hashes; a given one is hashed and compared with all of them, so that time says nothing of
which was close. Paths are compared as the server routes them, never as a header describes them.
"""

from __future__ import annotations

import hashlib
import logging
import os
import secrets
import stat
from collections.abc import Iterable, MutableMapping
from pathlib import Path

from engine.types.errors import ConfigError
from starlette.datastructures import Headers

logger = logging.getLogger(__name__)

KEY_VARIABLE = "PAGODA_API_KEY"
MAX_KEYS = 1024

OPEN_PATHS = frozenset({"/health", "/ready", "/live", "/version"})
"""All that is answered without a key; every other path needs one, whether a route is there or not."""


class KeyRing:
    """The keys of this server; without any, every request passes.

    Args:
        keys: in the clear; only their hashes are kept.
        open_paths: exact paths that need no key.
    """

    def __init__(self, keys: Iterable[str], open_paths: frozenset[str] = OPEN_PATHS) -> None:
        self._digests = [_digest(key) for key in keys]
        self._open_paths = open_paths

    @property
    def has_keys(self) -> bool:
        """Whether any request needs a key."""
        return bool(self._digests)

    def admits(self, path: str, headers: Headers) -> bool:
        """Return whether a request to this path may pass."""
        if not self._digests or path in self._open_paths:
            return True
        return self._knows(_get_key(headers))

    def _knows(self, key: str) -> bool:
        digest = _digest(key)
        is_known = False
        for known in self._digests:  # all of them, whichever fits
            is_known |= secrets.compare_digest(digest, known)
        return is_known


def load_keys(api_key_file: str | None, environment: MutableMapping[str, str] = os.environ) -> list[str]:
    """Return the keys of the file and of the environment, which forgets them: no child process inherits one.

    Raises:
        ConfigError: the file cannot be read, holds no key, or there are too many.
    """
    keys = [key.strip() for key in environment.pop(KEY_VARIABLE, "").split(",")]
    if api_key_file is not None:
        keys += _read_key_file(api_key_file)
    keys = list(dict.fromkeys(key for key in keys if key))
    if len(keys) > MAX_KEYS:
        raise ConfigError(f"{len(keys)} API keys are given; at most {MAX_KEYS} are allowed.")
    if any(not key.isascii() or not key.isprintable() or " " in key for key in keys):
        raise ConfigError("an API key holds blanks or characters outside printable ASCII; choose another.")
    return keys


def _read_key_file(path: str) -> list[str]:
    try:
        text = Path(path).read_text(encoding="utf-8")
        mode = os.stat(path).st_mode
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"server.api_key_file={path!r} cannot be read ({type(error).__name__}); give a text file with "
            "one key per line.",
            key="server.api_key_file",
        ) from None
    if mode & (stat.S_IRGRP | stat.S_IROTH):
        logger.warning("server.api_key_file can be read by other users of this machine; chmod 600 it.")
    lines = [line.strip() for line in text.splitlines()]
    keys = [line for line in lines if line and not line.startswith("#")]
    if not keys:
        raise ConfigError(
            f"server.api_key_file={path!r} holds no key; put one per line.", key="server.api_key_file"
        )
    return keys


def _get_key(headers: Headers) -> str:
    scheme, _, key = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return key.strip()
    return headers.get("x-api-key", "")


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
