"""Whatever comes in whatever order: the books balance, everybody ends, tokens are as if each ran alone."""

from __future__ import annotations

import random
from typing import Any

import pytest
from core_scripted import POISON
from engine.types.request import RequestStatus
from engine.types.wire import FinishReason
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from scheduler_harness import Harness, random_prompt


class SchedulerMachine(RuleBasedStateMachine):
    """Random requests, aborts at every moment, failures, resets, over tiny pools."""

    @initialize(
        num_blocks=st.integers(4, 40),
        max_num_seqs=st.integers(1, 6),
        budget=st.sampled_from([1, 3, 8, 20, 64]),
        policy=st.sampled_from(["fcfs", "priority"]),
        chunked=st.booleans(),
        threshold=st.sampled_from([0, 2, 7]),
        prefix_caching=st.booleans(),
    )
    def build(self, **arguments: Any) -> None:
        if not arguments["chunked"]:
            arguments["budget"] = 64
        arguments["budget"] = max(arguments["budget"], arguments["max_num_seqs"])
        self.harness = Harness(**arguments)
        self.count = 0

    @rule(
        seed=st.integers(0, 2**16),
        max_tokens=st.integers(1, 30),
        priority=st.integers(-1, 1),
        salt=st.sampled_from([None, None, "a", "b"]),
        is_poisoned=st.integers(0, 15).map(lambda value: value == 0),
        logprobs=st.sampled_from([None, 1]),
        prompt_logprobs=st.sampled_from([None, None, 1]),
    )
    def add(self, seed: int, is_poisoned: bool, **arguments: Any) -> None:
        rng = random.Random(seed)
        prompt = random_prompt(rng)
        if is_poisoned:
            prompt[-1] = POISON
        self.count += 1
        self.harness.add(f"r{self.count}", prompt, arrival_time_s=rng.random(), seed=seed % 3, **arguments)

    @rule(index=st.integers(0, 1000))
    def abort(self, index: int) -> None:
        live = sorted(self.harness.scheduler._requests)
        if live:
            self.harness.scheduler.abort([live[index % len(live)], "unknown"])

    @precondition(lambda self: self.harness.scheduler.has_unfinished())
    @rule(num_steps=st.integers(1, 5))
    def step(self, num_steps: int) -> None:
        for _ in range(num_steps):
            if self.harness.scheduler.has_unfinished():
                self.harness.step()

    @precondition(lambda self: self.harness.scheduler.has_unfinished())
    @rule(index=st.integers(0, 1000))
    def abort_in_flight(self, index: int) -> None:
        live = sorted(self.harness.scheduler._requests)
        self.harness.step(abort_in_flight=(live[index % len(live)],))

    @rule()
    def reset_prefix_cache(self) -> None:
        self.harness.kv.reset_prefix_cache()

    @invariant()
    def books_balance(self) -> None:
        if hasattr(self, "harness"):
            self.harness.audit()

    def teardown(self) -> None:
        if not hasattr(self, "harness"):
            return
        harness = self.harness
        # A request computes at most all its tokens per residence, and it is pushed out at most once per
        # request ahead of it.
        harness.run(max_steps=200 + 80 * self.count * (1 + self.count))
        assert set(harness.ends) == set(harness.requests)
        for request_id in harness.requests:
            harness.check_tokens(request_id)


TestSchedulerMachine = SchedulerMachine.TestCase
TestSchedulerMachine.settings = settings(
    max_examples=300,
    stateful_step_count=30,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)


def run_traffic(seed: int, **arguments: Any) -> Harness:
    """Random arrivals and aborts, a function of the seed alone."""
    rng = random.Random(seed)
    harness = Harness(**arguments)
    for index in range(25):
        harness.add(
            f"r{index}",
            random_prompt(rng),
            max_tokens=rng.randrange(1, 25),
            priority=rng.randrange(3),
            arrival_time_s=float(index),
            seed=rng.randrange(3),
        )
        for _ in range(rng.randrange(3)):
            harness.step()
    harness.run()
    return harness


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_same_seed_gives_the_same_schedule(policy: str) -> None:
    first = run_traffic(7, num_blocks=24, policy=policy)
    second = run_traffic(7, num_blocks=24, policy=policy)
    assert first.num_preemptions > 0
    assert first.schedules == second.schedules


@pytest.mark.parametrize("seed", range(4))
def test_tokens_do_not_depend_on_how_they_were_scheduled(seed: int) -> None:
    plain = run_traffic(seed, num_blocks=2000, budget=2000, max_num_seqs=25, prefix_caching=False)
    assert plain.num_preemptions == 0
    variants: list[dict[str, Any]] = [
        {"num_blocks": 18},
        {"num_blocks": 18, "prefix_caching": False},
        {"budget": 5},
        {"threshold": 3},
        {"chunked": False, "budget": 64},
        {"max_num_seqs": 1},
        {"policy": "priority", "num_blocks": 18},
        {"block_size": 1, "num_blocks": 200},
    ]
    num_preemptions = 0
    for arguments in variants:
        varied = run_traffic(seed, **arguments)
        assert varied.tokens == plain.tokens, arguments
        num_preemptions += varied.num_preemptions
    assert num_preemptions > 0


def test_oldest_running_request_is_never_preempted() -> None:
    harness = Harness(num_blocks=14, max_num_seqs=4, budget=64)
    for index in range(8):
        harness.add(f"r{index}", [3] * 4 + [10 + index], max_tokens=30, eos=())
    while harness.scheduler.has_unfinished():
        running = [name for name in harness.scheduler._batch.request_ids if name not in harness.ends]
        harness.step()
        if running:
            status = harness.requests[running[0]].status
            assert status is not RequestStatus.WAITING, f"{running[0]} was the oldest and was pushed out"
    assert harness.num_preemptions > 0
    # All are equally long: they came in order, so they end in order.
    assert list(harness.ends) == list(harness.requests)


def test_thousand_aborts_race_with_the_last_token() -> None:
    harness = Harness(num_blocks=200, max_num_seqs=8, budget=256)
    rng = random.Random(3)
    for trial in range(1000):
        name = f"r{trial}"
        max_tokens = rng.randrange(1, 4)
        harness.add(name, random_prompt(rng, 12), max_tokens=max_tokens, eos=())
        moment = rng.randrange(3)
        for index in range(max_tokens):
            is_last = index == max_tokens - 1
            if is_last and moment == 0:
                harness.scheduler.abort([name])
                break
            harness.step(abort_in_flight=(name,) if is_last and moment == 1 else ())
        harness.scheduler.abort([name])
        if harness.scheduler.has_events():
            harness.take(harness.scheduler.take_events())
        assert harness.ends[name].reason is (FinishReason.LENGTH if moment == 2 else FinishReason.ABORT)
        assert len(harness.tokens[name]) == max_tokens - (moment != 2)
        harness.check_idle()
