"""`AsyncLLM`: a model for many streams at once, on an event loop, over a core process.

Owns the path of every request from its arrival to its end: room in the queue first, then tokenizing in a
thread, then the core, then outputs to whoever waits. Closing its iterator ends a request in whatever state
it is. When the core dies every stream ends with the reason. Knows nothing of HTTP.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Protocol

from engine.config.engine_config import EngineConfig
from engine.core.client import AsyncCoreClient, build_async_client
from engine.frontend.chat_template import ChatTemplate, build_chat_template
from engine.frontend.input_processor import InputProcessor, ProcessedInput, Prompt
from engine.frontend.output_processor import OutputProcessor
from engine.frontend.request_state import FinishedRequest, RequestState
from engine.frontend.tokenizer import load_tokenizer
from engine.types.errors import EngineDeadError, EngineDrainingError, EngineError, QueueFullError
from engine.types.info import EngineInfo
from engine.types.outputs import RequestMetrics, RequestOutput
from engine.types.progress import ProgressCallback
from engine.types.sampling_params import SamplingParams
from engine.types.wire import SchedulerStats

if TYPE_CHECKING:
    from engine.frontend.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

MAX_TOKENIZER_THREADS = 4


class EngineObserver(Protocol):
    """Hears what happens, for metrics; called on the event loop, so it must be quick."""

    def on_step(self, stats: SchedulerStats) -> None:
        """Hear the core's gauges after a step."""

    def on_request_finished(self, record: FinishedRequest) -> None:
        """Hear of a request that ended, by itself or by abort."""


class AsyncLLM:
    """A running model; construct, `start`, then `generate` any number of times.

    Args:
        config: resolved.
        max_waiting: sequences that may wait beyond those that could run at once; None is no limit.
        client: of a core that is not started yet; None builds the configured one.
        tokenizer: None loads the configured one.
    """

    def __init__(
        self,
        config: EngineConfig,
        *,
        max_waiting: int | None = None,
        client: AsyncCoreClient | None = None,
        tokenizer: Tokenizer | None = None,
    ) -> None:
        self.config = config
        self.info: EngineInfo | None = None
        self.tokenizer = tokenizer
        self.chat_template: ChatTemplate | None = None
        self.stats: SchedulerStats | None = None
        """The core's last report."""
        self.dead_error: EngineDeadError | None = None
        self.is_draining = False
        self._max_waiting = max_waiting
        self._client = client or build_async_client(config)
        num_cpus = config.platform_info.num_cpus if config.platform_info else 1
        self._pool = ThreadPoolExecutor(
            max(1, min(MAX_TOKENIZER_THREADS, num_cpus // 2)), thread_name_prefix="tokenize"
        )
        self._observers: list[EngineObserver] = []
        self._inputs: InputProcessor | None = None
        self._outputs = OutputProcessor(None)
        self._streams: set[_Stream] = set()
        self._num_preparing = 0
        self._ids = itertools.count(1)
        self._output_task: asyncio.Task[None] | None = None
        self._dead = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._is_shut_down = False

    @property
    def is_ready(self) -> bool:
        """True while requests are taken."""
        return self._inputs is not None and self.dead_error is None and not self.is_draining

    @property
    def num_waiting(self) -> int:
        """Sequences that arrived and have not been scheduled yet, those being tokenized included."""
        return self._num_preparing + self._outputs.num_waiting

    @property
    def num_running(self) -> int:
        """Sequences that have been scheduled and not ended."""
        return self._outputs.num_running

    def add_observer(self, observer: EngineObserver) -> None:
        """Let an observer hear of steps and finished requests from now on."""
        self._observers.append(observer)

    async def start(self, on_progress: ProgressCallback | None = None) -> None:
        """Start the core and load the tokenizer; returns once requests can be taken.

        Raises:
            EngineDeadError: the core did not start; the text has the root cause.
            CheckpointError: the tokenizer cannot be read.
            ConfigError: the chat template cannot be used.
        """
        loop = asyncio.get_running_loop()
        texts = loop.run_in_executor(self._pool, self._load_texts)
        try:
            self.info = await self._client.start(on_progress)
            self.tokenizer, self.chat_template = await texts
        except BaseException as error:
            # Its own failure, if any, is not the one to report.
            texts.cancel()
            await asyncio.gather(texts, return_exceptions=True)
            if isinstance(error, EngineDeadError):
                self._die(error)
            raise
        self._inputs = InputProcessor(self.config, self.info, self.tokenizer)
        self._outputs = OutputProcessor(self.tokenizer, self._tell_finished)
        self._output_task = loop.create_task(self._read_outputs(), name="engine outputs")

    def check_health(self) -> None:
        """Return if the engine is alive.

        Raises:
            EngineDeadError: it is not, or has not been started.
        """
        if self.dead_error is not None:
            raise _copy(self.dead_error)
        if self._inputs is None:
            raise EngineDeadError("the engine has not started yet.")

    async def generate(
        self,
        prompt: Prompt,
        params: SamplingParams,
        request_id: str,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
        add_special_tokens: bool = True,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Yield the outputs of one request until it ends; a slow reader gets them merged.

        Closing the iterator, or cancelling whoever reads it, aborts the request in whatever state it is.

        Args:
            prompt: text, token ids, `{"prompt": ...}` or `{"prompt_token_ids": ...}`.
            params: how to sample, and what each output carries.
            request_id: the caller's name for it; need not be unique.
            priority: lower runs first; needs the priority policy.
            cache_salt: keeps cached prefixes apart from those under another salt.
            add_special_tokens: let the tokenizer add what it adds to a text.

        Raises:
            QueueFullError: too many requests wait; raised before any work.
            EngineDrainingError: the engine is stopping.
            InvalidRequestError: the prompt or a parameter cannot be run.
            EngineDeadError: the engine is dead, or dies.
        """
        self._check_accepting()
        stream = _Stream(request_id)
        self._streams.add(stream)
        self._idle.clear()
        try:
            processed = await self._process_input(
                stream, prompt, params, priority, cache_salt, add_special_tokens
            )
            state = self._submit(stream, processed)
            while not stream.is_over:
                if state.is_ready:
                    output = state.take()
                    stream.is_over = output.is_finished
                    yield output
                elif self.dead_error is not None:
                    raise _copy(self.dead_error)
                else:
                    await stream.wakeup.wait()
                    stream.wakeup.clear()
        finally:
            self._close_stream(stream)

    def abort(self, request_id: str) -> None:
        """End every open request of that name: its stream gets a last output with `finish_reason` "abort"."""
        for stream in [s for s in self._streams if s.request_id == request_id]:
            self._abort_stream(stream)

    def abort_all(self) -> None:
        """End every open request likewise."""
        for stream in list(self._streams):
            self._abort_stream(stream)

    async def drain(self, timeout_s: float) -> bool:
        """Take no new requests and wait for the open ones; return whether all ended in time."""
        self.is_draining = True
        try:
            await asyncio.wait_for(self._idle.wait(), timeout_s)
        except TimeoutError:
            return False
        return True

    async def call(self, method: str) -> bool | int | float | str | None:
        """Call one of the core's control methods (`reset_prefix_cache`, `ping`)."""
        self.check_health()
        return await self._client.call(method)

    async def wait_dead(self) -> EngineDeadError:
        """Wait until the core dies; return why."""
        await self._dead.wait()
        assert self.dead_error is not None
        return self.dead_error

    async def shutdown(self) -> None:
        """End open streams with "abort", then the core; safe to call twice and after a failed start."""
        if self._is_shut_down:
            return
        self._is_shut_down = True
        self.is_draining = True
        self.abort_all()
        # The reader goes before what it reads from, so that the core's end is not taken for its death.
        if self._output_task is not None:
            self._output_task.cancel()
            await asyncio.gather(self._output_task, return_exceptions=True)
        await self._client.shutdown()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _load_texts(self) -> tuple[Tokenizer | None, ChatTemplate | None]:
        tokenizer = load_tokenizer(self.config) if self.tokenizer is None else self.tokenizer
        return tokenizer, build_chat_template(self.config, tokenizer)

    def _check_accepting(self) -> None:
        if self.is_draining:
            raise EngineDrainingError("the engine is stopping and takes no new requests.")
        self.check_health()
        if self._max_waiting is None or self.info is None:
            return
        # What could run at once is not a queue: free rows count as room.
        room = self._max_waiting + max(0, self.info.max_num_seqs - self.num_running)
        if self.num_waiting >= room:
            raise QueueFullError(f"{self.num_waiting} requests wait already, the most allowed; retry later.")

    async def _process_input(
        self,
        stream: _Stream,
        prompt: Prompt,
        params: SamplingParams,
        priority: int,
        cache_salt: str | None,
        add_special_tokens: bool,
    ) -> ProcessedInput:
        """Check and tokenize in a worker thread; cancelled in time, it never starts."""
        assert self._inputs is not None
        inputs, internal_id = self._inputs, str(next(self._ids))
        self._num_preparing += params.n
        try:
            return await asyncio.get_running_loop().run_in_executor(
                self._pool,
                lambda: inputs.process(
                    prompt,
                    params,
                    internal_id=internal_id,
                    arrival_time_s=stream.arrival_time_s,
                    priority=priority,
                    cache_salt=cache_salt,
                    add_special_tokens=add_special_tokens,
                ),
            )
        except EngineError:
            stream.is_over = True
            raise
        finally:
            self._num_preparing -= params.n

    def _submit(self, stream: _Stream, processed: ProcessedInput) -> RequestState:
        """Hand a checked request to the core, unless things changed while it was tokenized."""
        self.check_health()
        state = self._outputs.add(stream.request_id, processed, stream.arrival_time_s, stream.wakeup.set)
        stream.state = state
        if stream.is_aborted:
            self._outputs.abort(state)
        else:
            self._client.add_requests(processed.requests)
        return state

    def _abort_stream(self, stream: _Stream) -> None:
        stream.is_aborted = True
        if stream.state is None:  # still being tokenized: `_submit` sees the mark
            return
        sequence_ids = self._outputs.abort(stream.state)
        if sequence_ids and self.dead_error is None:
            self._client.abort_requests(sequence_ids)

    def _close_stream(self, stream: _Stream) -> None:
        self._streams.discard(stream)
        if not self._streams:
            self._idle.set()
        if stream.state is not None:
            self._abort_stream(stream)
        elif not stream.is_over:
            # Gone before the core heard of it; it still counts as a request that ended.
            self._tell_finished(
                FinishedRequest(
                    request_id=stream.request_id,
                    num_prompt_tokens=0,
                    num_output_tokens=0,
                    num_cached_tokens=0,
                    finish_reason="abort",
                    metrics=RequestMetrics(
                        arrival_time_s=stream.arrival_time_s, finished_time_s=time.monotonic()
                    ),
                )
            )

    async def _read_outputs(self) -> None:
        try:
            while True:
                outputs = await self._client.get_outputs()
                to_abort = self._outputs.process(outputs)
                if to_abort:
                    self._client.abort_requests(to_abort)
                if outputs.stats is not None:
                    self._tell_stats(outputs.stats)
                # Outputs that are already there must not keep readers from running.
                await asyncio.sleep(0)
        except EngineDeadError as error:
            self._die(error)
        except Exception:
            logger.exception("reading the engine's outputs failed")
            self._die(EngineDeadError("reading the engine's outputs failed; the log has the cause."))

    def _die(self, error: EngineDeadError) -> None:
        """Note the end and wake every reader, which raises it."""
        if self.dead_error is not None:
            return
        self.dead_error = error
        self._dead.set()
        for stream in self._streams:
            stream.wakeup.set()

    def _tell_stats(self, stats: SchedulerStats) -> None:
        self.stats = stats
        for observer in self._observers:
            try:
                observer.on_step(stats)
            except Exception:  # an observer's trouble must not end the streams
                logger.exception("an observer failed on a step")

    def _tell_finished(self, record: FinishedRequest) -> None:
        for observer in self._observers:
            try:
                observer.on_request_finished(record)
            except Exception:  # as above
                logger.exception("an observer failed on a finished request")


def _copy(error: EngineDeadError) -> EngineDeadError:
    """The same for another reader; one exception raised in many tasks would gather their tracebacks."""
    return EngineDeadError(str(error), is_configuration=error.is_configuration)


class _Stream:
    """One call of `generate`, from its arrival on."""

    __slots__ = ("arrival_time_s", "is_aborted", "is_over", "request_id", "state", "wakeup")

    def __init__(self, request_id: str) -> None:
        self.request_id = request_id
        self.arrival_time_s = time.monotonic()
        self.state: RequestState | None = None
        self.wakeup = asyncio.Event()
        self.is_aborted = False
        self.is_over = False
        """The reader has the last output, or the request was refused."""
