"""How a frontend reaches the engine core."""

from __future__ import annotations

from typing import Literal

from engine.config.component import ComponentConfig
from engine.config.compose import Composition
from engine.config.rules.choice import get_option
from engine.config.rules.record import Record
from engine.types.errors import ConfigError

Entrypoint = Literal["offline", "async"]


def resolve_transport(composition: Composition, entrypoint: Entrypoint, record: Record) -> ComponentConfig:
    """Return the transport that the entry point can use."""
    given = composition.engine.transport
    if given.option == "auto":
        name, why = (
            ("inproc", "offline use") if entrypoint == "offline" else ("ipc", "a server's own process")
        )
        record.decide("transport", name, "auto", why)
        return get_option(composition, "transport", name)
    if entrypoint == "async" and given.option == "inproc":
        raise ConfigError(
            "transport='inproc' runs the engine inside its caller, which would block every open stream "
            "during a step; use transport=ipc or auto.",
            key="transport",
        )
    return given
