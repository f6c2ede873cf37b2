"""Stand-ins for what lies below the frontend: a byte tokenizer and a core that needs no model.

The fake core generates by rule, token i of a request being a function of its prompt and i, so a test can say
what must come out whatever the batch, the order and the aborts were.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from engine.config.engine_config import EngineConfig
from engine.config.model import ModelConfig
from engine.config.scheduler import SchedulerConfig
from engine.config.settings import SamplingConfig
from engine.frontend.input_processor import InputProcessor
from engine.types.errors import EngineDeadError
from engine.types.info import CheckpointFacts, EngineInfo
from engine.types.runner_output import TokenLogprobs
from engine.types.wire import (
    EngineCoreOutputs,
    EngineCoreRequest,
    FinishReason,
    SchedulerStats,
    SequenceFinished,
    SequenceLogprobs,
    SequencePromptLogprobs,
    SequenceStarted,
)

BOS, EOS, MARK = 256, 257, 258
FIRST_PIECE = 259
MAX_MODEL_LEN = 256


class ByteTokenizer:
    """Ids 0 to 255 are bytes, then three special tokens, then the pieces given."""

    def __init__(self, pieces: Sequence[bytes] = (), *, adds_bos: bool = False) -> None:
        self._bytes = [bytes([i]) for i in range(256)] + [b"<s>", b"</s>", b"<|mark|>", *pieces]
        self._adds_bos = adds_bos
        self.vocab_size = len(self._bytes)
        self.bos_token_id, self.eos_token_ids = BOS, [EOS]
        self.bos_token, self.eos_token = "<s>", "</s>"
        self.chat_template: str | None = None
        self.special_token_ids = frozenset({BOS, EOS, MARK})
        self.num_encoded = 0

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        self.num_encoded += 1
        return ([BOS] if self._adds_bos and add_special_tokens else []) + list(text.encode())

    def token_bytes(self, token_id: int) -> bytes:
        return self._bytes[token_id]

    def token_string(self, token_id: int) -> str:
        return self._bytes[token_id].decode("utf-8", "replace")

    def is_special(self, token_id: int) -> bool:
        return token_id in self.special_token_ids


def make_config(
    *,
    policy: str = "fcfs",
    generation_config: dict[str, object] | None = None,
    use_generation_config: str = "auto",
    max_logprobs: int = 20,
    chat_template: str | None = None,
) -> EngineConfig:
    """A resolved configuration, as far as the frontend reads one."""
    return EngineConfig(
        model=ModelConfig(family="llama", path="/nowhere", max_model_len=MAX_MODEL_LEN),
        scheduler=SchedulerConfig(policy=policy),
        sampling=SamplingConfig(generation_config=use_generation_config, max_logprobs=max_logprobs),
        checkpoint=CheckpointFacts(
            format="config",
            path="/nowhere",
            architecture="LlamaForCausalLM",
            config={},
            vocab_size=300,
            eos_token_ids=[EOS],
            generation_config=generation_config or {},
            chat_template=chat_template,
        ),
    )


def make_info(
    *, max_model_len: int = MAX_MODEL_LEN, vocab_size: int = 300, max_num_seqs: int = 4
) -> EngineInfo:
    """What a running core says of itself."""
    return EngineInfo(
        max_model_len=max_model_len,
        vocab_size=vocab_size,
        num_blocks=64,
        block_size=16,
        kv_cache_bytes=1,
        max_num_seqs=max_num_seqs,
        pid=1,
    )


def make_inputs(config: EngineConfig | None = None, **info: int) -> InputProcessor:
    """An input processor over the byte tokenizer."""
    return InputProcessor(config or make_config(), make_info(**info), ByteTokenizer())  # type: ignore[arg-type]


def rule(prompt_token_ids: Sequence[int], seed: int | None, position: int) -> int:
    """Token number `position` of a request: a lower-case letter."""
    return ord("a") + (sum(prompt_token_ids) * 7 + (seed or 0) * 3 + position * position) % 26


def expected_text(prompt: str, num_tokens: int, seed: int | None = None) -> str:
    """What the fake core makes of a prompt."""
    return "".join(chr(rule(list(prompt.encode()), seed, i)) for i in range(num_tokens))


class FakeCore:
    """Runs requests by rule, `max_num_seqs` at a time, one token each per step."""

    def __init__(self, *, max_num_seqs: int = 4, next_token: Callable[..., int] = rule) -> None:
        self.info = make_info(max_num_seqs=max_num_seqs)
        self.next_token = next_token
        self.waiting: list[EngineCoreRequest] = []
        self.running: dict[str, tuple[EngineCoreRequest, list[int]]] = {}
        self.aborted: list[str] = []
        self.seen_ids: set[str] = set()
        self._finished: list[SequenceFinished] = []

    def add(self, requests: Sequence[EngineCoreRequest]) -> None:
        for request in requests:
            assert request.request_id not in self.seen_ids, "ids are unique for the life of the core"
            self.seen_ids.add(request.request_id)
            self.waiting.append(request)

    def abort(self, request_ids: Sequence[str]) -> None:
        self.aborted += request_ids
        for request_id in request_ids:
            known = self.running.pop(request_id, None) is not None
            before = len(self.waiting)
            self.waiting = [r for r in self.waiting if r.request_id != request_id]
            if known or len(self.waiting) < before:
                self._finished.append(SequenceFinished(request_id, FinishReason.ABORT))

    @property
    def is_idle(self) -> bool:
        return not (self.waiting or self.running)

    def step(self) -> EngineCoreOutputs:
        now_s = time.monotonic()
        started, prompt_logprobs = [], []
        while self.waiting and len(self.running) < self.info.max_num_seqs:
            request = self.waiting.pop(0)
            self.running[request.request_id] = (request, [])
            started.append(SequenceStarted(request.request_id, 0, now_s))
            if request.params.prompt_logprobs is not None:
                ids = request.prompt_token_ids[1:]
                values = TokenLogprobs([[i, 1] for i in ids], [[-1.0, -2.0]] * len(ids), [2] * len(ids))
                prompt_logprobs.append(SequencePromptLogprobs(request.request_id, 1, values))
        finished, self._finished = self._finished, []
        request_ids, token_ids, logprobs = [], [], []
        for request_id, (request, generated) in list(self.running.items()):
            params = request.params
            token_id = self.next_token(request.prompt_token_ids, params.seed, len(generated))
            generated.append(token_id)
            request_ids.append(request_id)
            token_ids.append(token_id)
            if params.logprobs is not None:
                candidates = [token_id, *range(97, 97 + params.logprobs)]
                values = [-0.5 - 0.25 * i for i in range(len(candidates))]
                logprobs.append(SequenceLogprobs(request_id, TokenLogprobs([candidates], [values], [3])))
            end = self._get_end(request, generated)
            if end is not None:
                finished.append(end)
                del self.running[request_id]
        return EngineCoreOutputs(
            timestamp_s=now_s,
            request_ids=request_ids,
            token_ids=token_ids,
            started=started,
            finished=finished,
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
            stats=self._build_stats(),
        )

    def _get_end(self, request: EngineCoreRequest, generated: list[int]) -> SequenceFinished | None:
        token_id, params = generated[-1], request.params
        if token_id in request.eos_token_ids:
            return SequenceFinished(request.request_id, FinishReason.STOP)
        if token_id in params.stop_token_ids:
            return SequenceFinished(request.request_id, FinishReason.STOP, stop_reason=token_id)
        if len(generated) == params.max_tokens:
            return SequenceFinished(request.request_id, FinishReason.LENGTH)
        return None

    def _build_stats(self) -> SchedulerStats:
        return SchedulerStats(len(self.running), len(self.waiting), 0.0, 64, 0, 0, 0, 0, 0, 0.001)


class FakeClient:
    """The synchronous client of a fake core."""

    def __init__(self, core: FakeCore) -> None:
        self.core = core
        self.num_steps = 0
        self.interrupt_after: int | None = None
        self.is_shut_down = False

    def start(self, on_progress: Callable[[str, float], None]) -> EngineInfo:
        on_progress("load_weights", 1.0)
        return self.core.info

    def add_requests(self, requests: Sequence[EngineCoreRequest]) -> None:
        self.core.add(requests)

    def abort_requests(self, request_ids: Sequence[str]) -> None:
        self.core.abort(request_ids)

    def get_outputs(self, timeout_s: float | None = None) -> EngineCoreOutputs:
        if self.num_steps == self.interrupt_after:
            self.interrupt_after = None
            raise KeyboardInterrupt
        self.num_steps += 1
        return self.core.step()

    def call(self, method: str) -> bool:
        return method == "reset_prefix_cache"

    def shutdown(self) -> None:
        self.is_shut_down = True


class FakeAsyncClient:
    """The asynchronous one; `hold` stops the steps, `allow` lets some run, `die` ends the core."""

    def __init__(self, core: FakeCore) -> None:
        self.core = core
        self._num_allowed: int | None = None
        self._may_step = asyncio.Event()
        self._may_step.set()
        self._work = asyncio.Event()
        self._death: str | None = None
        self.is_shut_down = False
        self.start_error: Exception | None = None

    async def start(self, on_progress: Callable[[str, float], None] | None = None) -> EngineInfo:
        if self.start_error is not None:
            raise self.start_error
        if on_progress is not None:
            on_progress("load_weights", 1.0)
        return self.core.info

    def add_requests(self, requests: Sequence[EngineCoreRequest]) -> None:
        self.core.add(requests)
        self._work.set()

    def abort_requests(self, request_ids: Sequence[str]) -> None:
        self.core.abort(request_ids)
        self._work.set()

    async def get_outputs(self) -> EngineCoreOutputs:
        await self._work.wait()
        await self._may_step.wait()
        if self._death is not None:
            raise EngineDeadError(self._death)
        if self._num_allowed is not None:
            self._num_allowed -= 1
            if self._num_allowed == 0:
                self._may_step.clear()
        outputs = self.core.step()
        if self.core.is_idle:
            self._work.clear()
        return outputs

    def hold(self) -> None:
        """Run no step until told."""
        self._num_allowed = 0
        self._may_step.clear()

    def allow(self, num_steps: int | None = None) -> None:
        """Run so many steps and hold again; None runs on."""
        self._num_allowed = num_steps
        self._may_step.set()

    def die(self, reason: str) -> None:
        self._death = reason
        self._work.set()
        self._may_step.set()

    async def call(self, method: str) -> bool:
        return method == "reset_prefix_cache"

    async def shutdown(self) -> None:
        self.is_shut_down = True
