"""Phases of start-up: what is being done, how far it is, and how long each phase took."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from engine.types.progress import ProgressCallback

logger = logging.getLogger(__name__)


class StartupPhases:
    """A progress callback that passes reports on and times the phases.

    A phase lasts from its first report to the first report of another, or to `finish`.
    """

    def __init__(
        self, on_progress: ProgressCallback | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._on_progress = on_progress
        self._clock = clock
        self._phase: str | None = None
        self._started_s = 0.0
        self.durations_s: dict[str, float] = {}
        """Seconds per finished phase, in order."""

    def __call__(self, phase: str, fraction: float) -> None:
        """Take a report."""
        if phase != self._phase:
            self.finish()
            self._phase, self._started_s = phase, self._clock()
        if self._on_progress is not None:
            self._on_progress(phase, fraction)

    def finish(self) -> None:
        """End the phase that runs, if any."""
        if self._phase is None:
            return
        seconds = self._clock() - self._started_s
        self.durations_s[self._phase] = self.durations_s.get(self._phase, 0.0) + seconds
        logger.info("start-up: %s took %.2f s", self._phase, seconds)
        self._phase = None
