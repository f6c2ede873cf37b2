"""Log lines: one format for every process, the request id where there is one, never a key.

Knows the standard library's logging only. The owner of a process calls `setup`; nothing happens at import.
"""

from __future__ import annotations

import logging
import sys
from contextvars import ContextVar

REDACTED = "[redacted]"

current_request_id: ContextVar[str | None] = ContextVar("current_request_id", default=None)
"""Id of the request that this task works for; its log lines carry it, unless they name one by `extra`."""

_MIN_SECRET_LEN = 4


class LineFormatter(logging.Formatter):
    """One line per record: time, level, process, logger, request id, message; tracebacks follow.

    Registered secrets are replaced in the finished text, so that no message, argument or traceback shows one.
    """

    def __init__(self, process_name: str) -> None:
        super().__init__(
            fmt=f"%(asctime)s %(levelname)-7s {process_name} %(name)s%(request)s %(message)s",
            datefmt="%Y-%m-%d %H:%M:%S",
        )
        self._secrets: list[str] = []

    def hide(self, secret: str) -> None:
        """Replace this text wherever it would be logged.

        Raises:
            ValueError: it is so short that hiding it would garble ordinary text.
        """
        if len(secret) < _MIN_SECRET_LEN:
            raise ValueError(
                f"a secret of {len(secret)} characters cannot be hidden; use {_MIN_SECRET_LEN} or more."
            )
        self._secrets.append(secret)
        # Longest first: a secret that holds another must not leave its rest behind.
        self._secrets.sort(key=len, reverse=True)

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as text, secrets replaced."""
        request_id = getattr(record, "request_id", None) or current_request_id.get()
        record.request = f" [{request_id}]" if request_id else ""
        text = super().format(record)
        for secret in self._secrets:
            text = text.replace(secret, REDACTED)
        return text


def setup(level: str, process_name: str) -> LineFormatter:
    """Send every log line of this process to standard error; return the formatter, to register secrets with.

    Called again, it replaces what it set up before.

    Args:
        level: `debug`, `info`, `warning` or `error`.
        process_name: short name of this process, part of each line.
    """
    formatter = LineFormatter(process_name)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    for old in list(root.handlers):
        if isinstance(old.formatter, LineFormatter):
            root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level.upper())
    return formatter
