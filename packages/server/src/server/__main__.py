"""`python -m server`: serve a model over HTTP.

Everything heavy is imported after the command line has been understood, so that help and mistakes are quick.
"""

from __future__ import annotations

import sys

from engine.config.argv import CommandLine
from engine.types.errors import ConfigError

from server import cli


def main() -> None:
    """Run the server with the process's own command line."""
    sys.exit(cli.run("python -m server", sys.argv[1:], _serve))


def _serve(line: CommandLine) -> int:
    if line.rest:
        raise ConfigError(f"{line.rest[0]!r} is no setting; write key=value, --help lists them.")
    if line.is_sweep:
        from server.sweep import run_sweep

        return run_sweep("server", line)
    composition = cli.compose_line(line)
    from server.serve import serve

    serve(composition, cli.get_model_names(line, composition))
    return cli.EXIT_OK


if __name__ == "__main__":
    main()
