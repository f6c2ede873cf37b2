"""How much a step may take."""

from __future__ import annotations

from dataclasses import replace

from engine.config.rules.record import Record
from engine.config.scheduler import SchedulerConfig
from engine.types.errors import ConfigError
from engine.types.info import PlatformInfo

_MAX_NUM_BATCHED_TOKENS = {"cpu": 2048, "cuda": 8192, "rocm": 8192}
_MAX_NUM_SEQS = {"cpu": 128, "cuda": 1024, "rocm": 1024}
_MAX_NUM_SEQS_MANY_CPUS = 256
_MANY_CPUS = 8


def resolve_scheduler(
    given: SchedulerConfig, max_model_len: int, platform: PlatformInfo, record: Record
) -> SchedulerConfig:
    """Return the scheduler's settings with rows and token budget decided, the one fitting the other."""
    budget = given.max_num_batched_tokens
    rows = given.max_num_seqs
    if rows is None:
        rows, why = _MAX_NUM_SEQS[platform.kind], f"the usual number on {platform.kind}"
        if platform.kind == "cpu" and platform.num_cpus >= _MANY_CPUS:
            rows, why = _MAX_NUM_SEQS_MANY_CPUS, f"a CPU with {platform.num_cpus} cores"
        if budget is not None and budget < rows:
            rows, why = budget, "each running request needs a token of scheduler.max_num_batched_tokens"
        record.decide("scheduler.max_num_seqs", rows, None, why)
    if budget is None:
        budget, why = _MAX_NUM_BATCHED_TOKENS[platform.kind], f"the usual budget on {platform.kind}"
        if rows > budget:
            budget, why = rows, "one token for each of scheduler.max_num_seqs"
        if not given.enable_chunked_prefill and max_model_len > budget:
            budget, why = max_model_len, "a whole prompt must fit, since chunked prefill is off"
        record.decide("scheduler.max_num_batched_tokens", budget, None, why)
    if budget < rows:
        raise ConfigError(
            f"scheduler.max_num_batched_tokens={budget} is less than scheduler.max_num_seqs={rows}, but each "
            f"running request needs one token a step; raise the first or lower the second to {budget}.",
            key="scheduler.max_num_batched_tokens",
        )
    if not given.enable_chunked_prefill:
        if budget < max_model_len:
            raise ConfigError(
                f"scheduler.max_num_batched_tokens={budget} is less than model.max_model_len="
                f"{max_model_len}, but with scheduler.enable_chunked_prefill=false a whole prompt must "
                f"fit one step; raise it, or set model.max_model_len to at most {budget}.",
                key="scheduler.max_num_batched_tokens",
            )
        if given.long_prefill_token_threshold:
            record.ignore(
                "scheduler.long_prefill_token_threshold",
                given.long_prefill_token_threshold,
                "scheduler.enable_chunked_prefill is off",
            )
    return replace(given, max_num_seqs=rows, max_num_batched_tokens=budget)
