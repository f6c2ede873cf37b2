"""A lock between processes, held on a file; the system lets go of it when its holder dies."""

from __future__ import annotations

import fcntl
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from engine.types.errors import CheckpointError

logger = logging.getLogger(__name__)

TIMEOUT_S = 3600.0
_POLL_INTERVAL_S = 0.2


@contextmanager
def hold_lock(path: Path, what: str, timeout_s: float = TIMEOUT_S) -> Iterator[None]:
    """Hold the lock on a file while the block runs; waits for another holder.

    Args:
        path: made if needed; stays behind.
        what: is locked, for messages.

    Raises:
        CheckpointError: another process held it for longer than the timeout.
    """
    deadline = time.monotonic() + timeout_s
    is_waiting = False
    with path.open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise CheckpointError(
                        f"another process has held {what} for {timeout_s:.0f} s ({path}); end it and try "
                        "again."
                    ) from None
                if not is_waiting:
                    logger.info("waiting for another process, which holds %s", what)
                    is_waiting = True
                time.sleep(_POLL_INTERVAL_S)
        # Closing the file lets go of the lock.
        yield
