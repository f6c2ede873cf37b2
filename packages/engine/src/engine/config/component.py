"""A component named in configuration: a dotted target and its own arguments, built where the object lives.

The look-up accepts names under the project's own packages only; an operator's flag, given as `allowed`, opens
it to others. Nothing that came over HTTP ever reaches it. Hydra's own instantiate is not used.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from typing import Any

from engine.types.errors import ConfigError

OWN_PACKAGES = ("engine", "kernels", "parsers", "server")


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentConfig:
    """One choice of a config group, still data."""

    target: str = ""
    """Dotted name of a class or function; empty where the option is `none`."""
    option: str = ""
    """Name of the option it came from, for messages."""
    args: dict[str, Any] = field(default_factory=dict)  # constructor arguments, checked by the constructor
    """Keyword arguments of its own."""


def load_target(
    target: str, allowed: tuple[str, ...] = OWN_PACKAGES
) -> Any:  # a class or function of any type
    """Return the object that a dotted name stands for.

    Raises:
        ConfigError: the name is outside `allowed`, or does not exist.
    """
    package, _, _ = target.partition(".")
    if package not in allowed:
        raise ConfigError(
            f"target {target!r} is outside the allowed packages {', '.join(allowed)}; "
            "use a name under one of them."
        )
    module_name, _, attribute = target.rpartition(".")
    try:
        return getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"target {target!r} cannot be imported: {error}") from error


def build(component: ComponentConfig, *args: object, **kwargs: object) -> Any:  # what the target returns
    """Build the component: runtime arguments first, then its own from configuration.

    Raises:
        ConfigError: the target is missing or refuses the configured arguments.
    """
    factory = load_target(component.target)
    return factory(*args, **kwargs, **component.args)
