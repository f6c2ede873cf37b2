"""How long-running start-up work reports: a callback, so that nobody below knows who listens."""

from __future__ import annotations

from collections.abc import Callable

ProgressCallback = Callable[[str, float], None]
"""(phase, fraction in [0, 1]); phases in order: `fetch_model`, `init_device`, `load_weights`,
`allocate_cache`, `warm_up`."""
