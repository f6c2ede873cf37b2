"""A line of statistics now and then while requests run."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from engine.types.wire import SchedulerStats

logger = logging.getLogger(__name__)


class StatsLog:
    """Adds up steps and logs a line per interval; quiet while nothing runs."""

    def __init__(self, interval_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._interval_s = interval_s
        self._clock = clock
        self._since_s = clock()
        self._num_scheduled = 0
        self._num_sampled = 0
        self._num_preemptions = 0
        self._queries = 0
        self._hits = 0

    def record(self, stats: SchedulerStats, num_sampled: int) -> None:
        """Count one step; log if the interval is over."""
        if self._interval_s <= 0:
            return
        self._num_scheduled += stats.num_scheduled_tokens
        self._num_sampled += num_sampled
        self._num_preemptions += stats.num_preemptions
        self._queries += stats.prefix_cache_queries
        self._hits += stats.prefix_cache_hits
        now_s = self._clock()
        elapsed_s = now_s - self._since_s
        if elapsed_s >= self._interval_s:
            self._log(stats, elapsed_s)
            self._since_s = now_s
            self._num_scheduled = self._num_sampled = self._num_preemptions = self._queries = self._hits = 0

    def restart(self) -> None:
        """Begin a new interval now: time spent idle is no part of a rate."""
        self._since_s = self._clock()

    def _log(self, stats: SchedulerStats, elapsed_s: float) -> None:
        logger.info(
            "running %d, waiting %d, KV cache %.1f %%, computed %.1f tokens/s, generated %.1f tokens/s, "
            "prefix hits %.1f %%, preemptions %d",
            stats.num_running,
            stats.num_waiting,
            100 * stats.kv_cache_usage,
            self._num_scheduled / elapsed_s,
            self._num_sampled / elapsed_s,
            100 * self._hits / self._queries if self._queries else 0.0,
            self._num_preemptions,
        )
