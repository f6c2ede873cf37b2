"""The component option that a decision names."""

from __future__ import annotations

from engine.config.component import ComponentConfig
from engine.config.compose import Composition
from engine.types.errors import ConfigError


def get_option(composition: Composition, group: str, name: str) -> ComponentConfig:
    """Return the option of that name.

    Raises:
        ConfigError: the group has none; the installation lacks an option file.
    """
    options = composition.components.get(group, {})
    if name not in options:
        raise ConfigError(
            f"{group}='auto' comes to {name!r}, which is not an option here; options: {', '.join(options)}.",
            key=group,
        )
    return options[name]
