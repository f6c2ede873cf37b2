"""Ctrl-C at the border between two steps: a step cut in half would leave requests that nobody owns."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType


class InterruptGuard:
    """Holds Ctrl-C back while a step runs; a context manager around the loop of steps.

    Only where it would raise `KeyboardInterrupt` anyway: in the main thread, with Python's own handler.
    A second Ctrl-C does not wait, for a step that hangs.
    """

    def __init__(self) -> None:
        self._is_pending = False
        self._is_installed = False

    def __enter__(self) -> InterruptGuard:
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._note)
            self._is_installed = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_installed:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        if error is None:
            self.check()

    def check(self) -> None:
        """Raise `KeyboardInterrupt` if Ctrl-C was pressed since the last call."""
        if self._is_pending:
            self._is_pending = False
            raise KeyboardInterrupt

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._is_pending:
            raise KeyboardInterrupt
        self._is_pending = True
