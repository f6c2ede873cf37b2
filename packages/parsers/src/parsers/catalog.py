"""Finding formats by file: the option `x` of a folder is the one parser class that `x.py` defines.

No list is kept and nothing is registered. A module is imported when its format is asked for; only an alias
makes all modules of the folder be read, once.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterable
from functools import cache
from typing import TypeVar

from parsers.base import Parser, ParserError

P = TypeVar("P", bound=Parser)


@cache
def option_names(package: str) -> tuple[str, ...]:
    """Return the names of the formats in a folder, sorted."""
    path: Iterable[str] = importlib.import_module(package).__path__
    return tuple(sorted(module.name for module in pkgutil.iter_modules(path)))


def find_option(package: str, name: str, base: type[P]) -> type[P]:
    """Return the parser class called `name` in a folder, by file name or alias.

    Raises:
        ParserError: if there is none.
    """
    wanted = name.strip().lower().replace("-", "_")
    if wanted in option_names(package):
        return _load(package, wanted, base)
    found = _aliases(package, base).get(wanted)
    if found is None:
        kind = package.rpartition(".")[2]
        raise ParserError(
            f"{kind} parser {name!r} does not exist; choose one of {', '.join(option_names(package))}"
        )
    return found


@cache
def _aliases(package: str, base: type[P]) -> dict[str, type[P]]:
    classes = [_load(package, name, base) for name in option_names(package)]
    return {alias.replace("-", "_"): option for option in classes for alias in option.aliases}


@cache
def _load(package: str, name: str, base: type[P]) -> type[P]:
    module = importlib.import_module(f"{package}.{name}")
    options = [
        value
        for value in vars(module).values()
        if inspect.isclass(value) and issubclass(value, base) and value.__module__ == module.__name__
    ]
    assert len(options) == 1, f"{module.__name__} must define one parser, not {len(options)}"
    return options[0]
