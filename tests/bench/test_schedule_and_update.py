"""Host cost of a decode step: the real scheduler and cache manager, blocks allocated at every boundary.

One round is 16 steps, so that each request crosses one block boundary in it; requests differ in length,
which spreads the boundaries over the steps as live traffic does. The figure per step is a 16th of the round.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator

import numpy as np
import pytest
from engine.config.scheduler import SchedulerConfig
from engine.kv_cache.manager import KVCacheManager
from engine.scheduler.scheduler import Scheduler
from engine.types.request import Request
from engine.types.runner_output import ModelRunnerOutput
from engine.types.sampling_params import SamplingParams
from pytest_benchmark.fixture import BenchmarkFixture

BLOCK_SIZE = 16
STEPS = 16
MAX_MODEL_LEN = 8192
EOS = 2


@pytest.fixture
def _frozen_gc() -> Iterator[None]:
    # As in the core process, which freezes what start-up left.
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("_frozen_gc")
@pytest.mark.parametrize("num_requests", [64, 256, 1024, 4096])
def test_schedule_and_update(benchmark: BenchmarkFixture, num_requests: int) -> None:
    scheduler = build_scheduler(num_requests)
    step(scheduler, num_requests)
    benchmark.extra_info["steps_per_round"] = STEPS

    benchmark.pedantic(run_steps, args=(scheduler, num_requests), rounds=40, warmup_rounds=2)

    per_step_ms = benchmark.stats.stats.median / STEPS * 1e3
    benchmark.extra_info["median_per_step_ms"] = per_step_ms
    assert scheduler.num_running == num_requests
    if num_requests == 1024:
        assert per_step_ms < 1.0


def build_scheduler(num_requests: int) -> Scheduler:
    num_blocks = num_requests * 64
    kv_cache = KVCacheManager(num_blocks=num_blocks, block_size=BLOCK_SIZE, num_rows=num_requests)
    scheduler = Scheduler(
        SchedulerConfig(),
        kv_cache,
        max_num_seqs=num_requests,
        max_num_batched_tokens=num_requests * 64,
        max_model_len=MAX_MODEL_LEN,
        vocab_size=50_000,
    )
    params = SamplingParams(max_tokens=MAX_MODEL_LEN - 64)
    rng = np.random.default_rng(0)
    for index in range(num_requests):
        prompt = rng.integers(3, 50_000, size=17 + index % BLOCK_SIZE, dtype=np.int32)
        scheduler.add_request(
            Request(
                f"request-{index}-0123456789abcdef",
                prompt,
                params,
                arrival_time_s=0.0,
                max_total_tokens=MAX_MODEL_LEN,
                seed=index,
                eos_token_ids=(EOS,),
            )
        )
    return scheduler


def run_steps(scheduler: Scheduler, num_requests: int) -> None:
    for _ in range(STEPS):
        step(scheduler, num_requests)


def step(scheduler: Scheduler, num_requests: int) -> None:
    schedule = scheduler.schedule()
    # Fresh ints each step, as a worker's copy to the host makes them.
    token_ids = np.full(num_requests, 1000 + schedule.step_id).tolist()
    output = ModelRunnerOutput(schedule.step_id, list(schedule.rows), token_ids)
    outputs = scheduler.update_from_output(schedule, output)
    assert len(outputs.token_ids) == num_requests
