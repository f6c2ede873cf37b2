"""`python -m server.explain`: each value, who set it, and why "auto" became what.

The checkpoint is fetched where it is not there yet, since its facts decide; no weight is read.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from engine.config.argv import CommandLine
from engine.config.catalog import nearest
from engine.config.explain import ExplainedValue, explain
from engine.types.errors import ConfigError
from rich.console import Console
from rich.table import Table

from server import cli

PROGRAM = "python -m server.explain"


def main() -> None:
    """Run with the process's own command line."""
    sys.exit(cli.run(PROGRAM, sys.argv[1:], _explain, operands="[KEY ...]", can_sweep=False))


def _explain(line: CommandLine) -> int:
    from engine.entrypoints.prepare import prepare

    composition = cli.compose_line(line)
    rows = explain(composition, prepare(composition, entrypoint="async"))
    _print(select_rows(rows, line.rest))
    return cli.EXIT_OK


def select_rows(rows: Sequence[ExplainedValue], keys: Sequence[str]) -> list[ExplainedValue]:
    """Return the rows of these keys and of groups among them; all rows where no key is given.

    Raises:
        ConfigError: a key that does not exist.
    """
    selected: list[ExplainedValue] = []
    for key in keys:
        found = [row for row in rows if row.key == key or row.key.startswith(f"{key}.")]
        if not found:
            raise ConfigError(f"{key} is not a setting; {nearest(key, [row.key for row in rows])}", key=key)
        selected += found
    return selected if keys else list(rows)


def _print(rows: Sequence[ExplainedValue]) -> None:
    console = Console()
    if not console.is_terminal:
        # For other programs: a line per key, nothing cut.
        for row in rows:
            print(" | ".join([row.key, _text(row.value), row.set_by, _reason(row)]).rstrip(" |"))
        return
    table = Table("key", "value", "set by", "why", show_lines=False)
    for row in rows:
        table.add_row(row.key, _text(row.value), row.set_by, _reason(row))
    console.print(table)


def _reason(row: ExplainedValue) -> str:
    return f"{row.given} -> {_text(row.value)}: {row.why}" if row.why else ""


def _text(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)


if __name__ == "__main__":
    main()
