"""Progress bars for offline use; silent where nobody watches."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


class GenerationProgress:
    """Counts finished prompts and generated tokens on the terminal; a context manager.

    Args:
        total: number of prompts.
        is_shown: False draws nothing.
    """

    def __init__(self, total: int, *, is_shown: bool) -> None:
        console = Console(stderr=True)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]:.0f} tokens/s"),
            TimeRemainingColumn(),
            console=console,
            disable=not is_shown or not console.is_terminal,
        )
        self._task = self._progress.add_task("Generating", total=total, rate=0.0)
        self._num_tokens = 0
        self._start_s = time.monotonic()

    def __enter__(self) -> GenerationProgress:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def finish_prompt(self) -> None:
        """Count one prompt whose outputs are complete."""
        self._progress.advance(self._task)

    def add_tokens(self, num_tokens: int) -> None:
        """Count generated tokens."""
        self._num_tokens += num_tokens
        elapsed_s = max(time.monotonic() - self._start_s, 1e-6)
        self._progress.update(self._task, rate=self._num_tokens / elapsed_s)


class StartupProgress:
    """Shows the phases of start-up on the terminal; a context manager whose `report` is the callback."""

    def __init__(self, *, is_shown: bool) -> None:
        console = Console(stderr=True)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f}%"),
            console=console,
            transient=True,
            disable=not is_shown or not console.is_terminal,
        )
        self._task = self._progress.add_task("Starting", total=1.0)

    def __enter__(self) -> StartupProgress:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def report(self, phase: str, fraction: float) -> None:
        """Show a phase and how far it is."""
        self._progress.update(self._task, description=phase.replace("_", " "), completed=fraction)
