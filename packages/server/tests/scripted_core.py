"""A core that needs no model, behind the real `AsyncLLM`: tokens by rule, blocks counted, steps held at will.

Token i of a sequence is a function of its prompt, its seed and i, so a test can say what must come out
whatever else runs. Prompts that contain a trigger fail on purpose.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence

from engine.config.engine_config import EngineConfig
from engine.config.model import ModelConfig
from engine.config.scheduler import SchedulerConfig
from engine.types.errors import EngineDeadError
from engine.types.info import CheckpointFacts, EngineInfo
from engine.types.progress import ProgressCallback
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

EOS, USER, ASSISTANT, SYSTEM = 256, 257, 258, 259
SPECIAL = {EOS: "<|end|>", USER: "<|user|>", ASSISTANT: "<|assistant|>", SYSTEM: "<|system|>"}
VOCAB_SIZE = 260
MAX_MODEL_LEN = 2048
NUM_BLOCKS = 256
FAIL = "please fail"
"""A prompt with this ends with an error."""
STOP_EARLY = "stop early"
"""A prompt with this ends with the end-of-sequence token after three tokens."""

TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'refuse' %}{{ raise_exception('no such role here') }}{% endif %}"
    "<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
    "{% if shout is defined %}{{ shout }}{% endif %}"
)


class ByteTokenizer:
    """Ids 0 to 255 are bytes; four special tokens follow, which text may spell out."""

    def __init__(self) -> None:
        self.vocab_size = VOCAB_SIZE
        self.bos_token_id: int | None = None
        self.eos_token_ids = [EOS]
        self.bos_token: str | None = None
        self.eos_token: str | None = SPECIAL[EOS]
        self.chat_template: str | None = TEMPLATE
        self.special_token_ids = frozenset(SPECIAL)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        for token_id, spelling in SPECIAL.items():
            text = text.replace(spelling, chr(0xE000 + token_id - EOS))
        ids: list[int] = []
        for char in text:
            index = ord(char) - 0xE000
            ids += [EOS + index] if 0 <= index < len(SPECIAL) else list(char.encode())
        return ids

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        kept = [i for i in ids if not (skip_special_tokens and i in SPECIAL)]
        return b"".join(self.token_bytes(i) for i in kept).decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        return SPECIAL[token_id].encode() if token_id in SPECIAL else bytes([token_id])

    def token_string(self, token_id: int) -> str:
        return self.token_bytes(token_id).decode("utf-8", "replace")

    def is_special(self, token_id: int) -> bool:
        return token_id in SPECIAL


def build_config(*, policy: str = "fcfs", chat_template: str | None = TEMPLATE) -> EngineConfig:
    """A resolved configuration, as far as frontend and server read one."""
    return EngineConfig(
        model=ModelConfig(family="llama", path="/nowhere", max_model_len=MAX_MODEL_LEN),
        scheduler=SchedulerConfig(policy=policy),  # type: ignore[arg-type]  # a literal, from tests
        checkpoint=CheckpointFacts(
            format="config",
            path="/nowhere",
            architecture="LlamaForCausalLM",
            config={},
            vocab_size=VOCAB_SIZE,
            eos_token_ids=[EOS],
            chat_template=chat_template,
        ),
    )


def next_token(prompt_ids: Sequence[int], seed: int, position: int) -> int:
    """Token number `position`: a letter; every fourth token is a piece of a two-byte character."""
    mixed = sum(prompt_ids) * 7 + seed * 3 + position * position
    if position % 8 == 3:
        return 0xC3
    if position % 8 == 4:
        return 0xA0 + mixed % 16
    return ord("a") + mixed % 26


def expected_ids(prompt_ids: Sequence[int], num_tokens: int, seed: int = 0) -> list[int]:
    """What the core makes of a prompt."""
    return [next_token(prompt_ids, seed, i) for i in range(num_tokens)]


def expected_text(prompt_ids: Sequence[int], num_tokens: int, seed: int = 0) -> str:
    """The same as text."""
    return ByteTokenizer().decode(expected_ids(prompt_ids, num_tokens, seed))


class ScriptedClient:
    """An `AsyncCoreClient`; `hold` stops the steps, `release` lets them run, `die` ends the core."""

    def __init__(self, *, max_num_seqs: int = 8, step_s: float = 0.0) -> None:
        self.info = EngineInfo(
            max_model_len=MAX_MODEL_LEN,
            vocab_size=VOCAB_SIZE,
            num_blocks=NUM_BLOCKS,
            block_size=16,
            kv_cache_bytes=1,
            max_num_seqs=max_num_seqs,
            pid=os.getpid(),
            startup_phases_s={"load_weights": 0.5},
        )
        self.waiting: list[EngineCoreRequest] = []
        self.running: dict[str, tuple[EngineCoreRequest, list[int]]] = {}
        self.num_finished = 0
        self.may_start = asyncio.Event()
        self.may_start.set()
        self.start_error: Exception | None = None
        self.shutdown_s = 0.0
        self._step_s = step_s
        self._finished: list[SequenceFinished] = []
        self._may_step = asyncio.Event()
        self._may_step.set()
        self._work = asyncio.Event()
        self._death: str | None = None

    @property
    def is_alive(self) -> bool:
        return self._death is None

    @property
    def pid(self) -> int:
        return os.getpid()

    @property
    def num_used_blocks(self) -> int:
        return sum(1 + (len(r.prompt_token_ids) + len(ids)) // 16 for r, ids in self.running.values())

    async def start(self, on_progress: ProgressCallback | None = None) -> EngineInfo:
        if on_progress is not None:
            on_progress("load_weights", 0.25)
        await self.may_start.wait()
        if self.start_error is not None:
            raise self.start_error
        return self.info

    def add_requests(self, requests: Sequence[EngineCoreRequest]) -> None:
        self.waiting += requests
        self._work.set()

    def abort_requests(self, request_ids: Sequence[str]) -> None:
        for request_id in request_ids:
            known = self.running.pop(request_id, None) is not None
            before = len(self.waiting)
            self.waiting = [request for request in self.waiting if request.request_id != request_id]
            if known or len(self.waiting) < before:
                self._finished.append(SequenceFinished(request_id, FinishReason.ABORT))
        self._work.set()

    async def get_outputs(self) -> EngineCoreOutputs:
        await self._work.wait()
        await self._may_step.wait()
        if self._step_s:
            await asyncio.sleep(self._step_s)
        if self._death is not None:
            raise EngineDeadError(self._death)
        outputs = self._step()
        if not self.waiting and not self.running:
            self._work.clear()
        return outputs

    async def call(self, method: str) -> bool:
        return method == "ping"

    async def shutdown(self) -> None:
        self._death = self._death or "the engine was shut down"

    def hold(self) -> None:
        """Run no step until released."""
        self._may_step.clear()

    def release(self) -> None:
        """Run steps again."""
        self._may_step.set()

    def die(self, reason: str) -> None:
        """End the core."""
        self._death = reason
        self._work.set()
        self._may_step.set()

    def _step(self) -> EngineCoreOutputs:
        now_s = time.monotonic()
        started: list[SequenceStarted] = []
        prompt_logprobs: list[SequencePromptLogprobs] = []
        while self.waiting and len(self.running) < self.info.max_num_seqs:
            request = self.waiting.pop(0)
            self.running[request.request_id] = (request, [])
            started.append(SequenceStarted(request.request_id, 0, now_s))
            if request.params.prompt_logprobs is not None:
                ids = request.prompt_token_ids[1:]
                values = TokenLogprobs([[i, 97] for i in ids], [[-1.0, -0.5]] * len(ids), [2] * len(ids))
                prompt_logprobs.append(SequencePromptLogprobs(request.request_id, 1, values))
        finished, self._finished = self._finished, []
        request_ids: list[str] = []
        token_ids: list[int] = []
        logprobs: list[SequenceLogprobs] = []
        for request_id, (request, generated) in list(self.running.items()):
            text = bytes(i for i in request.prompt_token_ids if i < 256).decode("utf-8", "replace")
            if FAIL in text and generated:
                finished.append(
                    SequenceFinished(request_id, FinishReason.ERROR, message="it failed on purpose.")
                )
                del self.running[request_id]
                continue
            token_id = next_token(request.prompt_token_ids, request.params.seed or 0, len(generated))
            if STOP_EARLY in text and len(generated) == 3:
                token_id = EOS
            generated.append(token_id)
            request_ids.append(request_id)
            token_ids.append(token_id)
            if request.params.logprobs is not None:
                candidates = [token_id, *range(97, 97 + request.params.logprobs)]
                values = [-0.6, *(-0.5 - 0.25 * i for i in range(request.params.logprobs))]
                logprobs.append(SequenceLogprobs(request_id, TokenLogprobs([candidates], [values], [3])))
            end = _get_end(request, generated)
            if end is not None:
                finished.append(end)
                del self.running[request_id]
        self.num_finished += len(finished)
        used = self.num_used_blocks
        return EngineCoreOutputs(
            timestamp_s=now_s,
            request_ids=request_ids,
            token_ids=token_ids,
            started=started,
            finished=finished,
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
            stats=SchedulerStats(
                len(self.running),
                len(self.waiting),
                used / NUM_BLOCKS,
                NUM_BLOCKS,
                used,
                0,
                0,
                0,
                len(token_ids),
                0.0,
            ),
        )


def _get_end(request: EngineCoreRequest, generated: list[int]) -> SequenceFinished | None:
    token_id, params = generated[-1], request.params
    if token_id in request.eos_token_ids:
        return SequenceFinished(request.request_id, FinishReason.STOP)
    if token_id in params.stop_token_ids:
        return SequenceFinished(request.request_id, FinishReason.STOP, stop_reason=token_id)
    if len(generated) == params.max_tokens:
        return SequenceFinished(request.request_id, FinishReason.LENGTH)
    return None
