"""Which interpolations configuration may hold: plain references to other keys, and no resolver.

A resolver such as `oc.env` would turn a configuration value into a way to read secrets.
"""

from __future__ import annotations

import re

_REFERENCE = re.compile(r"\$\{([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)\}")


def calls_resolver(text: str) -> bool:
    """True where a text interpolates anything but plain references such as `${tp}`."""
    return "${" in _REFERENCE.sub("", text)


def referenced_key(text: object) -> str | None:
    """Return the key that a value stands for where it is one plain reference and nothing else."""
    match = _REFERENCE.fullmatch(text) if isinstance(text, str) else None
    return match[1] if match else None
