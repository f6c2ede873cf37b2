"""`-m`: one fresh process per combination of values, one after the other, and a table of how they ended."""

from __future__ import annotations

import subprocess
import sys
import time

from engine.config.argv import CommandLine, expand_sweep
from rich.console import Console
from rich.table import Table


def run_sweep(module: str, line: CommandLine) -> int:
    """Run `python -m <module>` once per combination; return the worst exit status.

    Ctrl-C reaches the running process too, which ends in its own way; the sweep then stops.

    Raises:
        ConfigError: a value that cannot be swept over.
    """
    flags = ["--cfg", "job"] if line.shows_config else []
    points = expand_sweep(line.overrides)
    table = Table("run", "overrides", "exit status", "seconds")
    worst = 0
    for number, overrides in enumerate(points, start=1):
        print(f"# {number}/{len(points)}: {' '.join(overrides)}", flush=True)
        start_s = time.monotonic()
        process = subprocess.Popen([sys.executable, "-m", module, *flags, *overrides])
        was_interrupted = False
        try:
            status = process.wait()
        except KeyboardInterrupt:
            was_interrupted = True
            status = process.wait()
        worst = max(worst, abs(status))
        table.add_row(str(number), " ".join(overrides), str(status), f"{time.monotonic() - start_s:.1f}")
        if was_interrupted:
            break
    Console().print(table)
    return worst
