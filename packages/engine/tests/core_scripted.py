"""An executor without a model for tests of the control plane: the next token is a function of a row's tokens.

It keeps its own request table from the diffs alone, as a worker does, and refuses a schedule that does not
add up: a row taken twice, a block in two rows that is no shared prefix, tokens without a slot.
"""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np
from engine.config.cache import CacheConfig
from engine.config.component import ComponentConfig
from engine.config.engine_config import EngineConfig
from engine.config.model import ModelConfig
from engine.config.scheduler import SchedulerConfig
from engine.config.settings import ObservabilityConfig
from engine.executor.base import Executor
from engine.types.info import CheckpointFacts, DeviceInfo, PlatformInfo
from engine.types.kv_cache_spec import FullAttentionSpec, KVCachePlan, KVCacheSpec
from engine.types.progress import ProgressCallback
from engine.types.runner_output import (
    ModelRunnerOutput,
    RowFailure,
    RowLogprobs,
    RowPromptLogprobs,
    TokenLogprobs,
)
from engine.types.sampling_params import SamplingParams
from engine.types.schedule import SchedulerOutput
from engine.types.wire import EngineCoreRequest

VOCAB_SIZE = 1000
EOS = 2
FIRST_WORD = 3
POISON = 999
"""A prompt that holds this id makes its row fail when it is computed."""
LAYER_BYTES = FullAttentionSpec(block_size=4, num_kv_heads=1, head_size=8, dtype="float32").page_bytes


def next_token(token_ids: list[int], seed: int) -> int:
    """The scripted model: about one token in 64 is end-of-sequence."""
    digest = hashlib.blake2b(np.array([seed, *token_ids], dtype=np.int64).tobytes(), digest_size=8).digest()
    value = int.from_bytes(digest, "little")
    return EOS if value % 64 == 0 else FIRST_WORD + value % (POISON - FIRST_WORD)


def expected_tokens(prompt: list[int], seed: int, limit: int, *, stops: frozenset[int]) -> list[int]:
    """What a request must yield, computed alone and without any engine."""
    tokens = list(prompt)
    while len(tokens) < len(prompt) + limit:
        tokens.append(next_token(tokens, seed))
        if tokens[-1] in stops:
            break
    return tokens[len(prompt) :]


@dataclass(slots=True)
class Row:
    """What a worker holds of one request."""

    token_ids: list[int]
    num_prompt_tokens: int
    num_computed: int
    block_ids: list[int]
    params: SamplingParams
    seed: int


@dataclass(slots=True)
class Blocks:
    """Content of the cache as a worker would have written it: the tokens up to and with each slot."""

    block_size: int
    content: dict[tuple[int, int], tuple[int, ...]] = field(default_factory=dict)


class ScriptedWorker:
    """Applies schedules and answers them; raises AssertionError on one that does not add up."""

    def __init__(self, block_size: int) -> None:
        self.rows: dict[int, Row] = {}
        self.blocks = Blocks(block_size)

    def execute(self, schedule: SchedulerOutput) -> ModelRunnerOutput:
        """Apply the diff, compute, sample."""
        self._apply(schedule)
        work = list(zip(schedule.rows, schedule.num_scheduled_tokens, strict=True))
        # All writes of a step come before its reads, as in each layer of a model.
        for index, count in work:
            self._write(self.rows[index], count)
        rows, token_ids, logprobs, prompt_logprobs, failures = [], [], [], [], []
        for index, count in work:
            row = self.rows[index]
            self._check_readable(row, row.num_computed + count)
            start = row.num_computed
            row.num_computed += count
            if POISON in row.token_ids[: row.num_computed]:
                failures.append(RowFailure(index, "non-finite logits"))
                continue
            if row.params.prompt_logprobs is not None and start < row.num_prompt_tokens:
                prompt_logprobs += self._prompt_logprobs(index, row, start)
            if row.num_computed < len(row.token_ids):
                continue
            token = next_token(row.token_ids, row.seed)
            row.token_ids.append(token)
            rows.append(index)
            token_ids.append(token)
            if row.params.logprobs is not None:
                logprobs.append(RowLogprobs(index, TokenLogprobs([[token]], [[-1.0]], [1])))
        return ModelRunnerOutput(schedule.step_id, rows, token_ids, logprobs, prompt_logprobs, failures)

    def _apply(self, schedule: SchedulerOutput) -> None:
        for index in schedule.finished_rows:
            del self.rows[index]
        for new in schedule.new_rows:
            assert new.row not in self.rows, f"row {new.row} is taken"
            self.rows[new.row] = Row(
                list(new.token_ids),
                new.num_prompt_tokens,
                new.num_computed_tokens,
                list(new.block_ids),
                new.params,
                new.seed,
            )
        for more in schedule.new_blocks:
            self.rows[more.row].block_ids += more.block_ids
        assert len(set(schedule.rows)) == len(schedule.rows)
        for row in self.rows.values():
            assert 0 not in row.block_ids, "the null block was handed out"

    def _write(self, row: Row, count: int) -> None:
        assert count > 0
        size = self.blocks.block_size
        for position in range(row.num_computed, row.num_computed + count):
            block_id = row.block_ids[position // size]
            self.blocks.content[block_id, position % size] = tuple(row.token_ids[: position + 1])

    def _check_readable(self, row: Row, num_tokens: int) -> None:
        """Every slot the row reads holds exactly its own history: the oracle for blocks mixed up."""
        size = self.blocks.block_size
        for position in range(num_tokens):
            found = self.blocks.content.get((row.block_ids[position // size], position % size))
            assert found == tuple(row.token_ids[: position + 1]), f"position {position} was overwritten"

    def _prompt_logprobs(self, index: int, row: Row, start: int) -> list[RowPromptLogprobs]:
        # The logits at position i describe token i + 1.
        first, last = start + 1, min(row.num_computed, row.num_prompt_tokens - 1)
        if last < first:
            return []
        ids = [[row.token_ids[position]] for position in range(first, last + 1)]
        values = TokenLogprobs(ids, [[-1.0]] * len(ids), [1] * len(ids))
        return [RowPromptLogprobs(index, first, values)]


class ScriptedExecutor(Executor):
    """One scripted worker.

    Args:
        block_size: tokens per block.
        num_blocks: blocks that the cache memory is worth.
        step_s: time a step takes; the step then runs in a thread.
        behaviour: what goes wrong: `fail_start`, `hang_start`, `fail_step`, `fail_step_and_hang` (in the
            shutdown), `kill_step` (dies without a word), `print_and_exit_step`; "" is nothing.
    """

    def __init__(
        self,
        config: EngineConfig,
        block_size: int = 4,
        num_blocks: int = 64,
        step_s: float = 0.0,
        behaviour: str = "",
    ) -> None:
        super().__init__(config)
        self.worker = ScriptedWorker(block_size)
        self._block_size = block_size
        self._num_blocks = num_blocks
        self._step_s = step_s
        self._behaviour = behaviour

    def start(self, on_progress: ProgressCallback) -> None:
        # In a core process nothing but a worker loads torch; a process of tests may hold it for other tests.
        main = sys.modules["__main__"].__spec__
        if main is not None and main.name == "engine.core.process":
            assert "torch" not in sys.modules
        on_progress("init_device", 1.0)
        if self._behaviour == "fail_start":
            raise RuntimeError("the device is on fire")
        if self._behaviour == "hang_start":
            threading.Event().wait()
        on_progress("load_weights", 0.0)
        on_progress("load_weights", 1.0)

    def get_kv_cache_specs(self) -> dict[str, KVCacheSpec]:
        spec = FullAttentionSpec(block_size=self._block_size, num_kv_heads=1, head_size=8, dtype="float32")
        return {"layers.0": spec}

    def get_available_cache_bytes(self) -> int:
        return self._num_blocks * self.get_kv_cache_specs()["layers.0"].page_bytes

    def initialize_cache(self, plan: KVCachePlan, on_progress: ProgressCallback) -> None:
        on_progress("allocate_cache", 1.0)

    def execute_model(self, schedule: SchedulerOutput) -> Future[ModelRunnerOutput]:
        if self._behaviour == "kill_step":
            os.kill(os.getpid(), signal.SIGKILL)
        if self._behaviour == "print_and_exit_step":
            print("the library gives up", file=sys.stderr, flush=True)
            os._exit(7)
        future: Future[ModelRunnerOutput] = Future()
        if self._behaviour.startswith("fail_step"):
            future.set_exception(RuntimeError("a kernel failed"))
        elif self._step_s:
            threading.Thread(target=self._run_later, args=(schedule, future), daemon=True).start()
        else:
            future.set_result(self.worker.execute(schedule))
        return future

    def _run_later(self, schedule: SchedulerOutput, future: Future[ModelRunnerOutput]) -> None:
        time.sleep(self._step_s)
        future.set_result(self.worker.execute(schedule))

    def shutdown(self) -> None:
        if self._behaviour == "fail_step_and_hang":
            threading.Event().wait()


def build_config(
    *,
    max_model_len: int = 128,
    scheduler: SchedulerConfig | None = None,
    cache: CacheConfig | None = None,
    transport: str = "engine.core.client.ProcessClient",
    **executor_args: object,
) -> EngineConfig:
    """A resolved configuration whose executor is the scripted one."""
    return EngineConfig(
        model=ModelConfig(max_model_len=max_model_len),
        scheduler=scheduler or SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=64),
        cache=cache or CacheConfig(),
        observability=ObservabilityConfig(log_level="warning"),
        executor=ComponentConfig(
            target="core_scripted.ScriptedExecutor", option="scripted", args=dict(executor_args)
        ),
        transport=ComponentConfig(target=transport, args={"plugin_packages": ["core_scripted"]}),
        checkpoint=CheckpointFacts(
            format="config", path="", architecture="Scripted", config={}, vocab_size=VOCAB_SIZE
        ),
        platform_info=PlatformInfo(
            kind="cpu",
            devices=[DeviceInfo(name="cpu", memory_bytes=2**30)],
            num_cpus=1,
            host_memory_bytes=2**30,
        ),
    )


def build_wire_request(
    request_id: str,
    prompt: list[int],
    *,
    eos: list[int] | None = None,
    seed: int | None = 0,
    **params: object,
) -> EngineCoreRequest:
    """A request as a frontend sends it."""
    return EngineCoreRequest(
        request_id=request_id,
        prompt_token_ids=prompt,
        params=SamplingParams(seed=seed, **params),
        arrival_time_s=0.0,
        eos_token_ids=[EOS] if eos is None else eos,
    )
