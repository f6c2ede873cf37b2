"""The real scheduler and cache manager against the scripted worker, the books audited after every step."""

from __future__ import annotations

import random
from collections import Counter, defaultdict

import numpy as np
from core_scripted import EOS, POISON, VOCAB_SIZE, ScriptedWorker, expected_tokens
from engine.config.scheduler import SchedulerConfig
from engine.kv_cache.manager import KVCacheManager
from engine.scheduler.scheduler import Scheduler
from engine.types.request import Request
from engine.types.runner_output import ModelRunnerOutput
from engine.types.sampling_params import SamplingParams
from engine.types.schedule import SchedulerOutput
from engine.types.wire import EngineCoreOutputs, FinishReason, SequenceFinished, SequencePromptLogprobs

MAX_MODEL_LEN = 64


class Harness:
    """Runs requests to their ends and remembers what each was told."""

    def __init__(
        self,
        *,
        num_blocks: int = 40,
        block_size: int = 4,
        max_num_seqs: int = 4,
        budget: int = 16,
        policy: str = "fcfs",
        chunked: bool = True,
        threshold: int = 0,
        prefix_caching: bool = True,
    ) -> None:
        config = SchedulerConfig(
            policy=policy,  # type: ignore[arg-type]
            enable_chunked_prefill=chunked,
            long_prefill_token_threshold=threshold,
        )
        self.max_num_seqs = max_num_seqs
        self.kv = KVCacheManager(
            num_blocks=num_blocks,
            block_size=block_size,
            num_rows=max_num_seqs,
            enable_prefix_caching=prefix_caching,
        )
        self.scheduler = Scheduler(
            config,
            self.kv,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=budget,
            max_model_len=MAX_MODEL_LEN,
            vocab_size=VOCAB_SIZE,
        )
        self.budget = budget
        self.worker = ScriptedWorker(block_size)
        self.requests: dict[str, Request] = {}
        self.prompts: dict[str, list[int]] = {}
        self.tokens: dict[str, list[int]] = defaultdict(list)
        self.ends: dict[str, SequenceFinished] = {}
        self.num_starts: Counter[str] = Counter()
        self.num_cached: dict[str, int] = {}
        self.prompt_logprobs: dict[str, list[SequencePromptLogprobs]] = defaultdict(list)
        self.num_logprobs: Counter[str] = Counter()
        self.num_preemptions = 0
        self.schedules: list[SchedulerOutput] = []

    def add(
        self,
        request_id: str,
        prompt: list[int],
        *,
        max_tokens: int = 8,
        eos: tuple[int, ...] = (EOS,),
        seed: int = 0,
        priority: int = 0,
        arrival_time_s: float = 0.0,
        salt: str | None = None,
        **params: object,
    ) -> Request:
        """Queue a request."""
        request = Request(
            request_id,
            np.array(prompt, dtype=np.int32),
            SamplingParams(max_tokens=max_tokens, **params),  # type: ignore[arg-type]
            arrival_time_s=arrival_time_s,
            max_total_tokens=min(len(prompt) + max_tokens, MAX_MODEL_LEN),
            seed=seed,
            eos_token_ids=eos,
            priority=priority,
            cache_salt=salt,
        )
        self.requests[request_id] = request
        self.prompts[request_id] = prompt
        self.scheduler.add_request(request)
        return request

    def step(self, abort_in_flight: tuple[str, ...] = ()) -> SchedulerOutput:
        """One step, some requests being aborted while it is computed."""
        schedule = self.scheduler.schedule()
        self.schedules.append(schedule)
        self.check_schedule(schedule)
        if not schedule.rows:
            self.scheduler.abort(abort_in_flight)
            self.take(self.scheduler.take_events())
            return schedule
        output = self.worker.execute(schedule)
        self.scheduler.abort(abort_in_flight)
        self.audit()
        self.take(self.scheduler.update_from_output(schedule, output))
        self.audit()
        return schedule

    def step_with(self, change: object) -> SchedulerOutput:
        """One step whose result is changed by a function before the scheduler sees it."""
        schedule = self.scheduler.schedule()
        output: ModelRunnerOutput = change(self.worker.execute(schedule))  # type: ignore[operator]
        self.take(self.scheduler.update_from_output(schedule, output))
        self.audit()
        return schedule

    def take(self, outputs: EngineCoreOutputs) -> None:
        """Remember what requests are told; nobody may hear anything after its end."""
        for request_id, token_id in zip(outputs.request_ids, outputs.token_ids, strict=True):
            assert request_id not in self.ends
            self.tokens[request_id].append(token_id)
        for start in outputs.started:
            self.num_starts[start.request_id] += 1
            self.num_cached[start.request_id] = start.num_cached_tokens
        for entry in outputs.logprobs:
            self.num_logprobs[entry.request_id] += len(entry.logprobs.token_ids)
        for stretch in outputs.prompt_logprobs:
            self.prompt_logprobs[stretch.request_id].append(stretch)
        for end in outputs.finished:
            assert end.request_id not in self.ends
            self.ends[end.request_id] = end
        assert outputs.stats is not None
        self.num_preemptions += outputs.stats.num_preemptions

    def run(self, max_steps: int = 2000) -> None:
        """Step until every request ended."""
        for _ in range(max_steps):
            if not self.scheduler.has_unfinished():
                if self.scheduler.has_events():
                    self.take(self.scheduler.take_events())
                self.check_idle()
                return
            self.step()
        raise AssertionError(f"{self.scheduler.num_running} requests still run after {max_steps} steps")

    def check_schedule(self, schedule: SchedulerOutput) -> None:
        """Budget and rows are kept."""
        assert schedule.num_tokens <= self.budget
        assert len(schedule.rows) <= self.max_num_seqs
        assert all(count > 0 for count in schedule.num_scheduled_tokens)

    def audit(self) -> None:
        """Free plus used is the total; owners and reference counts agree; only equal prefixes are shared."""
        pool, table = self.kv.pool, self.scheduler._table
        free = pool.free_blocks()
        used = [block for block in pool.blocks[1:] if block.ref_count]
        assert len(free) == pool.num_free
        assert len(free) + len(used) == pool.num_usable
        assert not {block.block_id for block in free} & {block.block_id for block in used}
        owners: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for row, request in enumerate(table.requests):
            if request is None:
                assert not self.kv.block_ids(row)
            for index, block_id in enumerate(self.kv.block_ids(row)):
                owners[block_id].append((row, index))
        assert set(owners) == {block.block_id for block in used}
        for block_id, places in owners.items():
            assert pool.blocks[block_id].ref_count == len(places)
            assert len({index for _, index in places}) == 1
            end = (places[0][1] + 1) * self.kv.block_size
            histories = {tuple(table.token_ids[row, :end].tolist()) for row, _ in places}
            assert len(places) == 1 or len(histories) == 1

    def check_idle(self) -> None:
        """Nothing runs, nothing waits, every block is free."""
        assert self.scheduler.num_running == self.scheduler.num_waiting == 0
        assert self.kv.pool.num_used == 0
        assert self.kv.usage == 0.0
        assert self.scheduler._table.num_free == self.max_num_seqs
        self.audit()

    def check_tokens(self, request_id: str) -> None:
        """The request got what it would have got alone (a prefix of it, if it was cut off)."""
        request, end = self.requests[request_id], self.ends[request_id]
        prompt = self.prompts[request_id]
        limit = request.max_total_tokens - len(prompt)
        alone = expected_tokens(prompt, request.seed, limit, stops=frozenset(request.stop_token_ids))
        got = self.tokens[request_id]
        if end.reason in (FinishReason.STOP, FinishReason.LENGTH):
            assert got == alone
            assert (end.reason is FinishReason.STOP) == (alone[-1] in request.stop_token_ids)
            assert self.num_starts[request_id] == 1
        else:
            assert got == alone[: len(got)]
        if end.reason is FinishReason.ERROR:
            assert POISON in prompt or "whole KV cache" in (end.message or "")


def random_prompt(rng: random.Random, max_len: int = 40) -> list[int]:
    """A prompt whose beginning others are likely to share."""
    base = [3 + i % 7 for i in range(max_len)]
    shared = rng.randrange(max_len)
    rest = [rng.randrange(3, 6) for _ in range(rng.randrange(1, 6))]
    return (base[:shared] + rest)[:max_len]
