"""Who set each key: replays the defaults list over the written YAML, then the command line.

Knows the order of merging, not the merged values; those come from Hydra.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from engine.config.catalog import Catalog
from engine.config.interpolation import referenced_key

DEFAULT = "default"
COMMAND_LINE = "command line"


def trace(
    merged: Sequence[tuple[str, str]],
    override_keys: Iterable[str],
    catalog: Catalog,
    raw: Mapping[str, Any],
) -> dict[str, str]:
    """Return who set each dotted key last.

    Args:
        merged: config path and package of each file, in merge order.
        override_keys: dotted keys of the command line, in order.
        raw: the composed tree with its references unresolved: a key that is one takes its target's setter.
    """
    setters: dict[str, str] = {}
    defaults = {f"{group}/{option}" for group, option in catalog.default_options.items()} | {"config"}
    for config_path, package in merged:
        source = DEFAULT if config_path in defaults else f"conf/{config_path}.yaml"
        tree = {key: value for key, value in catalog.read_config(config_path).items() if key != "defaults"}
        for key, _ in leaves(tree, package):
            setters[key] = source
    composed = dict(leaves(raw))
    for key in override_keys:
        for leaf in [key, *(name for name in composed if name.startswith(f"{key}."))]:
            setters[leaf] = COMMAND_LINE
    for key, value in composed.items():
        target = referenced_key(value)
        if target and setters.get(key) == DEFAULT:
            setters[key] = setters.get(target, DEFAULT)
    return {key: setters.get(key, DEFAULT) for key in composed}


def leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield dotted key and value of everything in a tree that is not a non-empty mapping."""
    for key, value in tree.items():
        name = f"{prefix}.{key}" if prefix else str(key)
        if isinstance(value, Mapping) and value:
            yield from leaves(value, name)
        else:
            yield name, value
