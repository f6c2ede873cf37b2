"""The executor as the core sees it: torch-free. Implementations own workers and arrive by target.

Life: construct (stores), `start` (build workers, load weights), `get_kv_cache_specs` and
`get_available_cache_bytes`, `initialize_cache`, then steps, then `shutdown`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from concurrent.futures import Future

from engine.config.engine_config import EngineConfig
from engine.types.kv_cache_spec import KVCachePlan, KVCacheSpec
from engine.types.progress import ProgressCallback
from engine.types.runner_output import ModelRunnerOutput
from engine.types.schedule import SchedulerOutput

__all__ = ["Executor", "ProgressCallback"]


class Executor(ABC):
    """Runs steps on workers. One caller, the engine core, from one thread."""

    def __init__(self, config: EngineConfig) -> None:
        self.config = config

    @abstractmethod
    def start(self, on_progress: ProgressCallback) -> None:
        """Build the workers and load the weights."""

    @abstractmethod
    def get_kv_cache_specs(self) -> dict[str, KVCacheSpec]:
        """Return what each attention layer needs, in layer order (of one rank)."""

    @abstractmethod
    def get_available_cache_bytes(self) -> int:
        """Return how many bytes of one rank's memory the KV cache may take."""

    @abstractmethod
    def initialize_cache(self, plan: KVCachePlan, on_progress: ProgressCallback) -> None:
        """Allocate the KV tensors and warm up."""

    @abstractmethod
    def execute_model(self, schedule: SchedulerOutput) -> Future[ModelRunnerOutput]:
        """Start one step and return at once; the result holds the rows that sampled.

        An exception in the future means that the workers are unusable: the core dies of it.
        """

    @abstractmethod
    def shutdown(self) -> None:
        """Free the device and end the workers; safe to call twice, and after a failed start."""
