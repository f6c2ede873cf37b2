"""The engine core: scheduler, KV cache and executor around one loop, in whatever process it is placed.

Knows no socket and no text. It trusts no frontend: each request is checked again, and one that fails any
stage of its own ends alone. Only a failed step ends the core.
"""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeVar

from engine.config.component import OWN_PACKAGES, load_target
from engine.config.engine_config import EngineConfig
from engine.core.validation import RequestLimits, build_request
from engine.executor.base import Executor
from engine.kv_cache.manager import KVCacheManager
from engine.kv_cache.planner import plan_kv_cache
from engine.observability.startup import StartupPhases
from engine.observability.stats import StatsLog
from engine.scheduler.scheduler import Scheduler
from engine.types.errors import ConfigError, InvalidRequestError
from engine.types.info import EngineInfo
from engine.types.progress import ProgressCallback
from engine.types.runner_output import ModelRunnerOutput
from engine.types.schedule import SchedulerOutput
from engine.types.wire import EngineCoreOutputs, EngineCoreRequest

logger = logging.getLogger(__name__)

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class StepInFlight:
    """A step that the executor works on."""

    schedule: SchedulerOutput
    future: Future[ModelRunnerOutput]


class EngineCore:
    """Owns the executor and the scheduler. Called from one thread.

    Life: construct (stores), `start`, then `add_requests`, `abort_requests`, `call` and `step` in any order,
    then `shutdown`. `step` is `begin_step` and `finish_step` in one; a loop with something else to do
    meanwhile calls the two.

    Args:
        config: resolved.
        on_progress: told the phases of start-up.
        plugin_packages: packages besides our own that the executor may come from; the operator's choice.
    """

    def __init__(
        self,
        config: EngineConfig,
        on_progress: ProgressCallback | None = None,
        *,
        plugin_packages: Sequence[str] = (),
    ) -> None:
        self.config = config
        self.info: EngineInfo | None = None
        """What clients need to know; set by `start`."""
        self._phases = StartupPhases(on_progress)
        self._plugin_packages = tuple(plugin_packages)
        self._stats_log = StatsLog(config.observability.log_stats_interval_s)
        self._random = random.Random(config.model.seed)
        self._executor: Executor | None = None
        self._scheduler: Scheduler | None = None
        self._kv_cache: KVCacheManager | None = None
        self._limits: RequestLimits | None = None

    def start(self) -> EngineInfo:
        """Build the executor, size the cache and get ready to step.

        Raises:
            ConfigError: a value is missing or does not fit the machine or the checkpoint.
        """
        config = self.config
        max_model_len = _resolved("model.max_model_len", config.model.max_model_len)
        max_num_seqs = _resolved("scheduler.max_num_seqs", config.scheduler.max_num_seqs)
        max_num_batched_tokens = _resolved(
            "scheduler.max_num_batched_tokens", config.scheduler.max_num_batched_tokens
        )
        vocab_size = _resolved("checkpoint", config.checkpoint).vocab_size
        self._executor = self._build_executor()
        self._executor.start(self._phases)
        plan = plan_kv_cache(
            self._executor.get_kv_cache_specs(),
            self._executor.get_available_cache_bytes(),
            max_model_len=max_model_len,
            num_blocks=config.cache.num_blocks,
        )
        self._executor.initialize_cache(plan, self._phases)
        self._kv_cache = KVCacheManager(
            num_blocks=plan.num_blocks,
            block_size=plan.block_size,
            num_rows=max_num_seqs,
            enable_prefix_caching=config.cache.enable_prefix_caching,
            hash_seed=config.cache.hash_seed,
        )
        self._scheduler = Scheduler(
            config.scheduler,
            self._kv_cache,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            max_model_len=max_model_len,
            vocab_size=vocab_size,
        )
        self._limits = RequestLimits(
            vocab_size=vocab_size, max_model_len=max_model_len, max_logprobs=config.sampling.max_logprobs
        )
        self._phases.finish()
        self.info = EngineInfo(
            max_model_len=max_model_len,
            vocab_size=vocab_size,
            num_blocks=plan.num_blocks,
            block_size=plan.block_size,
            kv_cache_bytes=plan.bytes,
            max_num_seqs=max_num_seqs,
            pid=os.getpid(),
            startup_phases_s=dict(self._phases.durations_s),
        )
        logger.info(
            "KV cache: %d blocks of %d tokens, %.1f MiB; room for %.1f sequences of %d tokens",
            plan.num_blocks,
            plan.block_size,
            plan.bytes / 2**20,
            (plan.num_blocks - 1) * plan.block_size / max_model_len,
            max_model_len,
        )
        return self.info

    def add_requests(self, requests: Sequence[EngineCoreRequest]) -> None:
        """Queue requests; one that does not hold what was promised ends alone, with an error."""
        for request in requests:
            try:
                self._add(request)
            except InvalidRequestError as error:
                self.reject(request.request_id, str(error))
            except Exception:
                # A request that our checks cannot even read must not take the others with it.
                logger.exception("a request could not be read", extra={"request_id": request.request_id})
                self.reject(request.request_id, "the request could not be read")

    def reject(self, request_id: str, message: str) -> None:
        """End a request with an error that the next outputs carry."""
        logger.warning("refused: %s", message, extra={"request_id": request_id})
        self._running_scheduler().reject(request_id, message)

    def abort_requests(self, request_ids: Sequence[str]) -> None:
        """End these requests in whatever state they are; unknown ids are ignored."""
        self._running_scheduler().abort(request_ids)

    def abort_all(self) -> None:
        """End every request."""
        self._running_scheduler().abort_all()

    def has_work(self) -> bool:
        """True while `step` has something to compute or to tell."""
        scheduler = self._running_scheduler()
        return scheduler.has_unfinished() or scheduler.has_events()

    def step(self) -> EngineCoreOutputs:
        """Compute one step and return what it gave; returns at once where there is nothing to compute."""
        step = self.begin_step()
        return self.take_events() if step is None else self.finish_step(step)

    def begin_step(self) -> StepInFlight | None:
        """Schedule a step and hand it to the executor; None where there is nothing to compute."""
        scheduler = self._running_scheduler()
        if not scheduler.has_unfinished():
            self._stats_log.restart()
            return None
        schedule = scheduler.schedule()
        if not schedule.rows:
            if not scheduler.has_events():
                # Requests wait, nothing runs and nobody ended: the loop would spin here for ever.
                raise RuntimeError(f"{scheduler.num_waiting} waiting requests could not be scheduled")
            return None
        assert self._executor is not None
        return StepInFlight(schedule, self._executor.execute_model(schedule))

    def finish_step(self, step: StepInFlight) -> EngineCoreOutputs:
        """Wait for a step and fold its result back.

        Raises:
            Exception: what the executor raised; the workers are unusable and the core is to end.
        """
        outputs = self._running_scheduler().update_from_output(step.schedule, step.future.result())
        if outputs.stats is not None:
            self._stats_log.record(outputs.stats, len(outputs.token_ids))
        return outputs

    def take_events(self) -> EngineCoreOutputs:
        """Return what is to be told outside a step."""
        return self._running_scheduler().take_events()

    def call(self, method: str) -> bool:
        """Carry out a control call: `ping`, or `reset_prefix_cache` (nothing cached so far is reused).

        Raises:
            InvalidRequestError: there is no such call.
        """
        if method == "ping":
            return True
        if method == "reset_prefix_cache":
            assert self._kv_cache is not None
            self._kv_cache.reset_prefix_cache()
            return True
        raise InvalidRequestError(
            f"call {method!r} is unknown; use ping or reset_prefix_cache.", param="method"
        )

    def shutdown(self) -> None:
        """Free the device and end the workers; safe to call twice, and after a failed start."""
        executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown()

    def _add(self, wire: EngineCoreRequest) -> None:
        scheduler, limits = self._running_scheduler(), self._limits
        assert limits is not None
        if scheduler.has_request(wire.request_id):
            # Two requests under one name cannot be told apart by their frontend: both end.
            raise InvalidRequestError(f"request id {wire.request_id!r} is in use.", param="request_id")
        scheduler.add_request(build_request(wire, limits, self._random.getrandbits(63)))

    def _build_executor(self) -> Executor:
        component = self.config.executor
        factory = load_target(component.target, (*OWN_PACKAGES, *self._plugin_packages))
        executor = factory(self.config, **component.args)
        if not isinstance(executor, Executor):
            raise ConfigError(
                f"executor: {component.target!r} is no subclass of engine.executor.base.Executor; name one.",
                key="executor",
            )
        return executor

    def _running_scheduler(self) -> Scheduler:
        assert self._scheduler is not None, "the core was not started"
        return self._scheduler


def _resolved(key: str, value: _T | None) -> _T:
    if value is None:
        raise ConfigError(f"{key} is null; the core takes a resolved configuration only.", key=key)
    return value
