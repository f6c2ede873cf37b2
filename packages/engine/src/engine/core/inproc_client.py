"""The core in the caller's own process: for offline use, and wherever one process is enough."""

from __future__ import annotations

import os
from collections.abc import Sequence

from engine.config.engine_config import EngineConfig
from engine.core.client_base import CoreClient
from engine.core.engine_core import EngineCore
from engine.platforms.threads import configure_threads
from engine.types.errors import EngineDeadError
from engine.types.info import EngineInfo
from engine.types.progress import ProgressCallback
from engine.types.wire import EngineCoreOutputs, EngineCoreRequest


class InprocClient(CoreClient):
    """The core in this process and thread; `get_outputs` computes one step."""

    def __init__(self, config: EngineConfig, plugin_packages: Sequence[str] = ()) -> None:
        super().__init__(config, plugin_packages)
        self._core: EngineCore | None = None
        self._death: EngineDeadError | None = None

    def start(self, on_progress: ProgressCallback | None = None) -> EngineInfo:
        if self.config.platform_info is not None:
            # No effect on numeric libraries that the caller has loaded already.
            configure_threads(self.config.platform_info, role="alone")
        core = EngineCore(self.config, on_progress, plugin_packages=self.plugin_packages)
        try:
            info = core.start()
        except BaseException:
            core.shutdown()
            raise
        self._core = core
        return info

    def add_requests(self, requests: Sequence[EngineCoreRequest]) -> None:
        self._running_core().add_requests(requests)

    def abort_requests(self, request_ids: Sequence[str]) -> None:
        self._running_core().abort_requests(request_ids)

    def get_outputs(self, timeout_s: float | None = None) -> EngineCoreOutputs:
        """Compute one step and return what it gave; returns at once where there is nothing to do.

        Raises:
            EngineDeadError: the step failed.
        """
        core = self._running_core()
        try:
            return core.step()
        except Exception as error:
            self._death = EngineDeadError(f"{type(error).__name__}: {error}")
            self.shutdown()
            raise self._death from error

    def call(self, method: str) -> bool | int | float | str | None:
        return self._running_core().call(method)

    def shutdown(self) -> None:
        core, self._core = self._core, None
        if core is not None:
            core.shutdown()

    @property
    def is_alive(self) -> bool:
        return self._core is not None

    @property
    def pid(self) -> int | None:
        return os.getpid()

    def _running_core(self) -> EngineCore:
        if self._core is None:
            raise self._death or EngineDeadError("the engine is not running")
        return self._core
