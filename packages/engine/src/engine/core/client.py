"""How a frontend gets its client: by what `transport` names, for blocking use or for an event loop."""

from __future__ import annotations

from engine.config.component import load_target
from engine.config.engine_config import EngineConfig
from engine.core.async_process_client import AsyncProcessClient
from engine.core.client_base import AsyncCoreClient, CoreClient
from engine.core.inproc_client import InprocClient
from engine.core.process_client import ProcessClient
from engine.types.errors import ConfigError

__all__ = [
    "AsyncCoreClient",
    "AsyncProcessClient",
    "CoreClient",
    "InprocClient",
    "ProcessClient",
    "build_async_client",
    "build_client",
]


def build_client(config: EngineConfig) -> CoreClient:
    """Return the client that `transport` names, for blocking use.

    Raises:
        ConfigError: the target is no client.
    """
    return _client_class(config)(config, **config.transport.args)


def build_async_client(config: EngineConfig) -> AsyncCoreClient:
    """Return the client that `transport` names, for an event loop.

    Raises:
        ConfigError: the target is no client, or one for blocking use only.
    """
    factory = _client_class(config).async_class()
    return factory(config, **config.transport.args)


def _client_class(config: EngineConfig) -> type[CoreClient]:
    target = load_target(config.transport.target)
    if not (isinstance(target, type) and issubclass(target, CoreClient)):
        raise ConfigError(
            f"transport: {config.transport.target!r} is no CoreClient; use one of transport=inproc, ipc.",
            key="transport",
        )
    return target
