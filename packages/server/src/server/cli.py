"""The command line of `server`, `server.explain` and whatever else starts from a configuration.

Adds the default model where none is named, prints help and the composed configuration, and turns errors
into exit statuses: 0 after a clean end, 2 for what the user can fix (one message, no traceback), 1 for a
failure, its root cause in the last line.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import PurePath

from engine.config.argv import CommandLine, names_model, parse_argv
from engine.config.compose import Composition, compose, render_config
from engine.config.help_text import render_help
from engine.config.model import ModelConfig
from engine.types.errors import CheckpointError, ConfigError

from server.settings import SCHEMAS

DEFAULT_MODEL = "smollm2"
EXIT_OK, EXIT_FAILED, EXIT_CONFIG = 0, 1, 2


def run(
    program: str,
    argv: Sequence[str],
    body: Callable[[CommandLine], int],
    *,
    operands: str = "",
    can_sweep: bool = True,
) -> int:
    """Return the exit status of a program; what it raises is told on standard error.

    Args:
        program: as typed, for the help text.
        argv: without the program.
        body: the program; gets the command line with a model in it.
        operands: what the program takes beside overrides, for the help text.
        can_sweep: whether the program knows `-m`; otherwise it is refused.
    """
    try:
        line = parse_argv(argv)
        if line.wants_help:
            print(render_help(program, operands=operands, can_sweep=can_sweep, schemas=SCHEMAS))
            return EXIT_OK
        if line.is_sweep and not can_sweep:
            raise ConfigError("-m is not a flag of this program; name one value for each key.")
        if not names_model(line.overrides):
            line = CommandLine(
                overrides=[f"+model={DEFAULT_MODEL}", *line.overrides],
                rest=line.rest,
                shows_config=line.shows_config,
                is_sweep=line.is_sweep,
            )
        if line.shows_config and not line.is_sweep:
            print(render_config(compose_line(line)), end="")
            return EXIT_OK
        return body(line)
    except (ConfigError, CheckpointError) as error:
        return _fail(f"{program}: {' '.join(str(error).split())}", EXIT_CONFIG)
    except KeyboardInterrupt:
        return _fail(f"{program}: interrupted", EXIT_FAILED)
    except BrokenPipeError:
        return EXIT_FAILED
    except Exception as error:
        if not _is_own(error):
            traceback.print_exc()  # nobody foresaw it: whoever repairs it needs to know where
        return _fail(f"{program}: {_root_cause(error)}", EXIT_FAILED)


def compose_line(line: CommandLine) -> Composition:
    """Return the composition that a command line describes.

    Raises:
        ConfigError: with the key, the value and what to do.
    """
    return compose(line.overrides, schemas=SCHEMAS, architecture_of=_architecture_of)


def get_model_names(line: CommandLine, composition: Composition) -> list[str]:
    """Return the names under which the model is served: as set, else as its option or checkpoint is
    called."""
    given = composition.settings["server"].served_model_name
    if given:
        return [given] if isinstance(given, str) else list(given)
    path = composition.engine.model.path
    is_own_path = composition.provenance.get("model.path") == "command line"
    if path and is_own_path and not path.startswith("pypi:"):
        return [_name_of_path(path)]
    options = [text.partition("=")[2] for text in line.overrides if text.lstrip("+").startswith("model=")]
    return [options[-1].strip("'\"")]


def _architecture_of(source: ModelConfig) -> str | None:
    # Reading a checkpoint needs more of the engine than most command lines do.
    from engine.entrypoints.prepare import architecture_of

    return architecture_of(source)


def _name_of_path(path: str) -> str:
    """A hub id as it is; of a local path the last part."""
    is_local = path.startswith(("/", ".", "~")) or path.endswith(".gguf") or path.count("/") != 1
    return (PurePath(path).name.removesuffix(".gguf") or path) if is_local else path


def _root_cause(error: BaseException) -> str:
    """The first cause of an error, in one line."""
    while error.__cause__ is not None:
        error = error.__cause__
    text = " ".join(str(error).split())
    return text if _is_own(error) and text else f"{type(error).__name__}: {text}"


def _is_own(error: BaseException) -> bool:
    return type(error).__module__.split(".")[0] in ("server", "engine")


def _fail(message: str, status: int) -> int:
    print(message, file=sys.stderr, flush=True)
    return status
