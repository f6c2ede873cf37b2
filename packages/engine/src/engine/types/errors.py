"""The engine's error families: one per boundary, so that a caller knows who must act.

Knows nothing of HTTP; the server maps these to status codes.
"""

from __future__ import annotations


class EngineError(Exception):
    """Base of what the engine raises for a reason of its own."""


class InvalidRequestError(EngineError, ValueError):
    """A request, or a field of it, that the caller can fix.

    Attributes:
        param: name of the offending field as the caller wrote it, or None for the request as a whole.
        code: stable machine-readable code (`context_length_exceeded`, ...), or None.
    """

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class ConfigError(EngineError, ValueError):
    """A configuration value that the operator can fix: names the key, the value and what to do.

    Attributes:
        key: dotted configuration key, or None where several play together.
    """

    def __init__(self, message: str, *, key: str | None = None) -> None:
        super().__init__(message)
        self.key = key


class CheckpointError(EngineError, ValueError):
    """A checkpoint that cannot be read, found or served, with what is wrong and what to do."""


class QueueFullError(EngineError):
    """The bounded queue holds as many requests as it may; retry later.

    Attributes:
        retry_after_s: a hint in seconds.
    """

    def __init__(self, message: str, *, retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class EngineDeadError(EngineError):
    """The engine core is gone; nothing more will be answered by it.

    Attributes:
        is_configuration: the cause is something that the operator can fix: a setting or a checkpoint.
    """

    def __init__(self, message: str, *, is_configuration: bool = False) -> None:
        super().__init__(message)
        self.is_configuration = is_configuration


class EngineDrainingError(EngineError):
    """The engine is stopping and takes no new requests."""


class RequestFailedError(EngineError):
    """One request failed inside the engine and ended alone; others go on."""
