"""One worker in the engine core's own process and thread.

A step is computed before `execute_model` returns: on one device that costs no overlap, since a GPU works on
after the call has queued its kernels and a CPU has no cores to spare for a second thread.
"""

from __future__ import annotations

from concurrent.futures import Future

from engine.config.engine_config import EngineConfig
from engine.executor.base import Executor, ProgressCallback
from engine.types.kv_cache_spec import KVCachePlan, KVCacheSpec
from engine.types.runner_output import ModelRunnerOutput
from engine.types.schedule import SchedulerOutput
from engine.worker.worker import Worker


class InprocExecutor(Executor):
    """Runs a single worker by plain calls."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        self._worker = Worker(config)

    def start(self, on_progress: ProgressCallback) -> None:
        on_progress("init_device", 0.0)
        self._worker.init_device()
        on_progress("init_device", 1.0)
        self._worker.load_model(on_progress)

    def get_kv_cache_specs(self) -> dict[str, KVCacheSpec]:
        return self._worker.get_kv_cache_specs()

    def get_available_cache_bytes(self) -> int:
        return self._worker.get_available_cache_bytes()

    def initialize_cache(self, plan: KVCachePlan, on_progress: ProgressCallback) -> None:
        self._worker.initialize_cache(plan, on_progress)

    def execute_model(self, schedule: SchedulerOutput) -> Future[ModelRunnerOutput]:
        future: Future[ModelRunnerOutput] = Future()
        try:
            future.set_result(self._worker.execute_model(schedule))
        except Exception as error:  # the core decides what a failed step means; it must reach it whole
            future.set_exception(error)
        return future

    def shutdown(self) -> None:
        self._worker.shutdown()
