"""Each value, who set it, and why "auto" became what: composition and resolution laid side by side as rows.

Data only; whoever prints it decides on columns and colours.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from engine.config.compose import ENGINE_COMPONENTS, ENGINE_SCHEMAS, Composition
from engine.config.engine_config import EngineConfig
from engine.config.provenance import DEFAULT


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedValue:
    """One key of the configuration."""

    key: str
    """Dotted key; a component's own is its group."""
    value: Any  # scalars, lists and mappings of any setting
    """What is in use."""
    set_by: str
    """`default`, an option file, or `command line`."""
    given: str | None = None
    """What the configuration said where `resolve` decided; None elsewhere."""
    why: str | None = None
    """Its reason, one sentence."""


def explain(composition: Composition, config: EngineConfig) -> list[ExplainedValue]:
    """Return a row per key, in the order of the groups.

    Args:
        config: the same composition resolved; its unresolved `engine` gives rows without reasons.
    """
    reasons = {reason.key: reason for reason in config.reasons}
    rows: list[ExplainedValue] = []
    for key, value in _values(composition, config):
        reason = reasons.get(key)
        setter = composition.provenance.get(key, composition.provenance.get(f"{key}._target_", DEFAULT))
        rows.append(
            ExplainedValue(
                key=key,
                value=value,
                set_by=setter,
                given=reason.given if reason else None,
                why=reason.why if reason else None,
            )
        )
    return rows


def _values(composition: Composition, config: EngineConfig) -> Iterator[tuple[str, Any]]:
    yield "preset", composition.tree.get("preset")
    for group in ENGINE_SCHEMAS:
        yield from _fields(group, getattr(config, group))
    for group in ENGINE_COMPONENTS:
        component = getattr(config, group)
        yield group, component.option
        for name, value in component.args.items():
            yield f"{group}.{name}", value
    for group, settings in composition.settings.items():
        yield from _fields(group, settings)


def _fields(group: str, settings: Any) -> Iterator[tuple[str, Any]]:
    for field in dataclasses.fields(settings):
        yield f"{group}.{field.name}", getattr(settings, field.name)
