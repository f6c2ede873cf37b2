"""From a composed configuration to a running server: log, keys, socket, then the life of the process."""

from __future__ import annotations

import asyncio
import logging
import sys

from engine.config.compose import Composition
from engine.observability.logging import setup
from engine.types.progress import ProgressCallback

from server.auth import OPEN_PATHS, KeyRing, load_keys
from server.lifecycle import Lifecycle
from server.listener import bind
from server.settings import LimitsConfig, ServerConfig
from server.state import Engine, ServerState

logger = logging.getLogger(__name__)

_MIN_HIDDEN_LEN = 4
_QUIET_LOGGERS = ("uvicorn", "uvicorn.error", "asyncio", "httpx", "httpcore")


def serve(composition: Composition, model_names: list[str]) -> None:
    """Serve until a signal; returns after a clean end.

    Raises:
        ConfigError: something the user can fix; the port being taken is known before anything else happens.
        CheckpointError: the checkpoint cannot be used.
        ServerFailedError: the engine did not start, or died.
    """
    settings: ServerConfig = composition.settings["server"]
    limits: LimitsConfig = composition.settings["limits"]
    formatter = setup(composition.engine.observability.log_level, "server")
    for name in _QUIET_LOGGERS:
        logging.getLogger(name).setLevel(logging.WARNING)
    secrets = load_keys(settings.api_key_file)
    for secret in secrets:
        if len(secret) >= _MIN_HIDDEN_LEN:
            formatter.hide(secret)
    open_paths = OPEN_PATHS | {"/metrics"} if settings.open_metrics else OPEN_PATHS
    listener = bind(settings.host, settings.port)
    state = ServerState(settings, limits, model_names, KeyRing(secrets, open_paths))
    del secrets

    def build_engine(on_progress: ProgressCallback) -> Engine:
        from engine.entrypoints.async_llm import AsyncLLM
        from engine.entrypoints.prepare import prepare

        config = prepare(composition, entrypoint="async", on_progress=on_progress)
        for warning in config.warnings:
            logger.warning("%s", warning)
        return AsyncLLM(config, max_waiting=limits.max_queued_requests)

    async def run() -> None:
        await Lifecycle(state, listener, build_engine).run()

    try:
        with asyncio.Runner(loop_factory=_new_loop) as runner:
            runner.run(run())
    finally:
        listener.close()


def _new_loop() -> asyncio.AbstractEventLoop:
    if sys.platform == "win32":
        return asyncio.new_event_loop()
    import uvloop

    return uvloop.new_event_loop()
