"""What a client of an engine core can do: one class for blocking calls, one for an event loop.

All clients carry the same types. A client of a process notices its death at once and says why; shutting down
leaves no process, no socket and no folder behind.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from engine.config.engine_config import EngineConfig
from engine.types.errors import ConfigError, EngineDeadError
from engine.types.info import EngineInfo
from engine.types.progress import ProgressCallback
from engine.types.wire import EngineCoreOutputs, EngineCoreRequest, EngineDead

SHUTDOWN_S = 10.0
"""From the Shutdown message to SIGTERM: a step that runs may end."""
CALL_TIMEOUT_S = 60.0
LAST_WORDS_S = 0.3
"""How long a dead core's last messages may still be on their way through the socket."""


def build_death(last_words: EngineDead) -> EngineDeadError:
    """Return the error that a core's last words stand for."""
    return EngineDeadError(last_words.message, is_configuration=last_words.is_configuration)


class CoreClient(ABC):
    """A core reached by blocking calls, from one thread.

    Args:
        config: resolved.
        plugin_packages: packages besides our own that the executor may come from; the operator's choice.
    """

    def __init__(self, config: EngineConfig, plugin_packages: Sequence[str] = ()) -> None:
        self.config = config
        self.plugin_packages = tuple(plugin_packages)

    @classmethod
    def async_class(cls) -> type[AsyncCoreClient]:
        """Return the client of the same transport for an event loop.

        Raises:
            ConfigError: there is none.
        """
        raise ConfigError(
            f"{cls.__name__} cannot be used from an event loop; set transport=ipc.", key="transport"
        )

    @abstractmethod
    def start(self, on_progress: ProgressCallback | None = None) -> EngineInfo:
        """Bring the core up and return what it says of itself; as long as it takes.

        Raises:
            EngineDeadError: it did not come up; the message is the root cause. In this process, the cause
                itself is raised.
        """

    @abstractmethod
    def add_requests(self, requests: Sequence[EngineCoreRequest]) -> None:
        """Queue requests."""

    @abstractmethod
    def abort_requests(self, request_ids: Sequence[str]) -> None:
        """End requests in whatever state they are; each ends with ABORT in later outputs."""

    @abstractmethod
    def get_outputs(self, timeout_s: float | None = None) -> EngineCoreOutputs:
        """Return the next outputs; empty ones once the time is over.

        Raises:
            EngineDeadError: the core is gone; the message is the root cause.
        """

    @abstractmethod
    def call(self, method: str) -> bool | int | float | str | None:
        """Carry out a control call and return its result.

        Raises:
            InvalidRequestError: the core refused it.
            TimeoutError: no answer came in time.
        """

    @abstractmethod
    def shutdown(self) -> None:
        """Stop the core and release everything; safe to call twice."""

    @property
    @abstractmethod
    def is_alive(self) -> bool:
        """True from a finished start until the end."""

    @property
    @abstractmethod
    def pid(self) -> int | None:
        """Process id of the core, or None before the start."""


class AsyncCoreClient(ABC):
    """A core reached from one event loop. Nothing blocks the loop.

    Args:
        config: resolved.
        plugin_packages: packages besides our own that the executor may come from; the operator's choice.
    """

    def __init__(self, config: EngineConfig, plugin_packages: Sequence[str] = ()) -> None:
        self.config = config
        self.plugin_packages = tuple(plugin_packages)

    @abstractmethod
    async def start(self, on_progress: ProgressCallback | None = None) -> EngineInfo:
        """Bring the core up and return what it says of itself; cancelling ends it.

        Raises:
            EngineDeadError: it did not come up; the message is the root cause.
        """

    @abstractmethod
    def add_requests(self, requests: Sequence[EngineCoreRequest]) -> None:
        """Send requests to the queue.

        Raises:
            EngineDeadError: the core is gone.
            QueueFullError: the core does not take messages at the moment.
        """

    @abstractmethod
    def abort_requests(self, request_ids: Sequence[str]) -> None:
        """End requests in whatever state they are; no error once the core is gone."""

    @abstractmethod
    async def get_outputs(self) -> EngineCoreOutputs:
        """Return the next outputs.

        Raises:
            EngineDeadError: the core is gone and everything it said was read; the message is the root cause.
        """

    @abstractmethod
    async def call(self, method: str) -> bool | int | float | str | None:
        """Carry out a control call and return its result.

        Raises:
            InvalidRequestError: the core refused it.
            EngineDeadError: the core is gone.
            TimeoutError: no answer came in time.
        """

    @abstractmethod
    async def shutdown(self) -> None:
        """Stop the core and release everything; safe to call twice."""

    @property
    @abstractmethod
    def is_alive(self) -> bool:
        """True from a finished start until the end."""

    @property
    @abstractmethod
    def pid(self) -> int | None:
        """Process id of the core, or None before the start."""
