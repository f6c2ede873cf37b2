"""What all routes share: settings, the engine once it runs, and where the server stands.

`lifecycle` writes it, routes read it. Whether work is taken is decided here, before a body is read: by the
status, then by the room left in the queue.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from engine.config.engine_config import EngineConfig
from engine.frontend.chat_template import ChatTemplate
from engine.frontend.input_processor import Prompt
from engine.frontend.sampling_defaults import build_default_fields
from engine.types.errors import EngineDeadError, EngineDrainingError, QueueFullError
from engine.types.info import EngineInfo
from engine.types.outputs import RequestOutput
from engine.types.progress import ProgressCallback
from engine.types.sampling_params import SamplingParams
from starlette.requests import Request

from server.auth import KeyRing
from server.errors import ApiError, bad_request, unavailable
from server.metrics import ServerMetrics
from server.settings import LimitsConfig, ServerConfig

if TYPE_CHECKING:
    from engine.entrypoints.async_llm import EngineObserver
    from engine.frontend.tokenizer import Tokenizer

T = TypeVar("T")

MAX_TEXT_THREADS = 2
"""Templates and long texts hold the interpreter lock, so more threads would not be faster, only less fair."""


class Engine(Protocol):
    """What the server needs of `AsyncLLM`."""

    config: EngineConfig
    info: EngineInfo | None
    tokenizer: Tokenizer | None
    chat_template: ChatTemplate | None
    dead_error: EngineDeadError | None

    @property
    def num_waiting(self) -> int:
        """Sequences not scheduled yet."""

    @property
    def num_running(self) -> int:
        """Sequences scheduled and not ended."""

    def add_observer(self, observer: EngineObserver) -> None:
        """Let an observer hear of steps and finished requests."""

    async def start(self, on_progress: ProgressCallback | None = None) -> None:
        """Start the core; returns once requests can be taken."""

    def generate(
        self,
        prompt: Prompt,
        params: SamplingParams,
        request_id: str,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
        add_special_tokens: bool = True,
    ) -> AsyncGenerator[RequestOutput]:
        """Yield the outputs of one request."""

    async def drain(self, timeout_s: float) -> bool:
        """Take no new requests; wait for the open ones."""

    async def wait_dead(self) -> EngineDeadError:
        """Wait until the core dies."""

    async def shutdown(self) -> None:
        """End open streams, then the core."""


class ServerStatus(Enum):
    """Where the server stands; it only moves down this list."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    DEAD = "dead"


class ServerState:
    """Shared by all routes of one server.

    Args:
        settings: group `server`.
        limits: group `limits`.
        model_names: under which requests find the model; the first names it in answers.
        keys: who may call.
    """

    def __init__(
        self, settings: ServerConfig, limits: LimitsConfig, model_names: list[str], keys: KeyRing
    ) -> None:
        self.settings = settings
        self.limits = limits
        self.model_names = model_names
        self.keys = keys
        self.metrics = ServerMetrics(model_names[0])
        self.created = int(time.time())
        self.status = ServerStatus.STARTING
        self.phase = "configure"
        self.progress = 0.0
        self.sampling_defaults: dict[str, Any] = {}  # values of SamplingParams fields
        self._engine: Engine | None = None
        self._num_preparing = 0
        self._pool = ThreadPoolExecutor(MAX_TEXT_THREADS, thread_name_prefix="text")

    @property
    def model_name(self) -> str:
        """The name of the model in answers."""
        return self.model_names[0]

    def report_progress(self, phase: str, fraction: float) -> None:
        """Note what start-up is doing; safe to call from any thread."""
        self.phase, self.progress = phase, fraction

    def set_ready(self, engine: Engine) -> None:
        """Take requests from now on, unless the server is stopping already."""
        self._engine = engine
        self.sampling_defaults = build_default_fields(engine.config)
        engine.add_observer(self.metrics)
        self.metrics.on_started(self.info)
        if self.status is ServerStatus.STARTING:
            self.status = ServerStatus.READY

    @property
    def current_status(self) -> ServerStatus:
        """The status, with the engine's death noticed at once."""
        if self._engine is not None and self._engine.dead_error is not None:
            return ServerStatus.DEAD
        return self.status

    def get_engine(self) -> Engine:
        """Return the engine if it takes work.

        Raises:
            ApiError: 503 while starting.
            EngineDrainingError: the server is stopping.
            EngineDeadError: the engine is dead.
        """
        engine = self._engine
        if self.current_status is ServerStatus.DEAD:
            raise EngineDeadError("the engine is dead.")
        if self.status is ServerStatus.DRAINING:
            raise EngineDrainingError("the server is stopping.")
        if engine is None or self.status is ServerStatus.STARTING:
            raise unavailable(f"The model is still being loaded ({self.phase}); ask /health.")
        return engine

    @property
    def info(self) -> EngineInfo:
        """Facts of the running engine; only once `get_engine` returned."""
        assert self._engine is not None
        assert self._engine.info is not None
        return self._engine.info

    def check_size(self, num_sequences: int) -> None:
        """Return if one request may have so many sequences.

        Raises:
            ApiError: 400.
        """
        if num_sequences > self.limits.max_sequences_per_request:
            raise bad_request(
                f"The request asks for {num_sequences} sequences (prompts times n); at most "
                f"{self.limits.max_sequences_per_request} are allowed (limits.max_sequences_per_request).",
                "n",
            )

    @contextmanager
    def hold_room(self, num_sequences: int) -> Iterator[None]:
        """Hold room for sequences while their prompt is prepared, before the engine counts them.

        Raises:
            QueueFullError: too many wait already.
        """
        self.check_room(num_sequences)
        self._num_preparing += num_sequences
        try:
            yield
        finally:
            self._num_preparing -= num_sequences

    def check_room(self, num_sequences: int = 1) -> None:
        """Return if so many sequences more may come.

        Raises:
            QueueFullError: too many wait already.
        """
        engine = self.get_engine()
        # What could run at once is not a queue: free rows count as room.
        free_rows = max(0, self.info.max_num_seqs - engine.num_running)
        num_waiting = engine.num_waiting + self._num_preparing
        if num_waiting + num_sequences > self.limits.max_queued_requests + free_rows:
            raise QueueFullError(
                f"{num_waiting} sequences wait already; there is no room for more. Retry later."
            )

    def check_model(self, name: str | None) -> None:
        """Return if this server serves that model; no name is the model there is.

        Raises:
            ApiError: 404.
        """
        if name and name not in self.model_names:
            served = ", ".join(self.model_names)
            raise ApiError(404, f"This server does not have that model; it serves: {served}.", param="model")

    async def run_in_thread(self, function: Callable[[], T]) -> T:
        """Return what a function on text returns, computed off the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, function)

    def close(self) -> None:
        """Drop work on text that has not begun."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def get_state(request: Request) -> ServerState:
    """Return the state of the server that a request came to."""
    state: ServerState = request.app.state.server
    return state
