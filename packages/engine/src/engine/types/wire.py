"""Messages between a frontend and an engine core: typed msgpack, tagged, unknown fields refused.

The same types serve the in-process client, so that both roads carry the same data.
"""

from __future__ import annotations

from enum import IntEnum

import msgspec

from engine.types.info import EngineInfo
from engine.types.runner_output import TokenLogprobs
from engine.types.sampling_params import SamplingParams


class FinishReason(IntEnum):
    """Why a request ended."""

    STOP = 0
    LENGTH = 1
    ABORT = 2
    ERROR = 3

    @property
    def text(self) -> str:
        """The word that APIs use."""
        return self.name.lower()


class EngineCoreRequest(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One sequence to generate (n > 1 is n of these), checked at the edge and again in the core."""

    request_id: str
    """Internal, unique for the life of the core; never a client's own id."""
    prompt_token_ids: list[int]
    params: SamplingParams
    """With `max_tokens` filled in, so that prompt and output fit the context."""
    arrival_time_s: float
    """`time.monotonic()` at the frontend; one clock for all processes of a machine."""
    eos_token_ids: list[int] = []
    """Ids that end the sequence; empty where the request ignores them."""
    bad_words_token_ids: list[list[int]] = []
    priority: int = 0
    """Lower runs first under the priority policy."""
    cache_salt: str | None = None


class SequenceStarted(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A request's first step was scheduled: it left the queue."""

    request_id: str
    num_cached_tokens: int
    scheduled_time_s: float


class SequenceFinished(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A request ended; nothing more comes for it."""

    request_id: str
    reason: FinishReason
    stop_reason: int | None = None
    """The stop token id that ended it; None for end-of-sequence and for lengths."""
    message: str | None = None
    """For errors: what to tell the caller."""
    num_preemptions: int = 0


class SequenceLogprobs(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Logprobs of the tokens of this step (sparse: only those who asked)."""

    request_id: str
    logprobs: TokenLogprobs


class SequencePromptLogprobs(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Logprobs of a stretch of prompt tokens from `start` (the first is 1)."""

    request_id: str
    start: int
    logprobs: TokenLogprobs


class SchedulerStats(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Gauges after a step, and counts since the last report."""

    num_running: int
    num_waiting: int
    kv_cache_usage: float
    """Share of blocks held by requests, 0 to 1; cached blocks without an owner count as free."""
    num_total_blocks: int
    num_used_blocks: int
    prefix_cache_queries: int
    """Tokens looked up since the last report."""
    prefix_cache_hits: int
    num_preemptions: int
    num_scheduled_tokens: int
    step_time_s: float


class EngineCoreOutputs(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="outputs"
):
    """What one step gives one client: columns for the tokens, sparse lists for the rest.

    `request_ids[i]` got `token_ids[i]`. A request that finishes with a token stands in both places; the
    end-of-sequence or stop token is among its tokens.
    """

    timestamp_s: float
    request_ids: list[str] = []
    token_ids: list[int] = []
    started: list[SequenceStarted] = []
    finished: list[SequenceFinished] = []
    logprobs: list[SequenceLogprobs] = []
    prompt_logprobs: list[SequencePromptLogprobs] = []
    stats: SchedulerStats | None = None


class StartupProgress(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="progress"
):
    """A phase of start-up and how far it is."""

    phase: str
    fraction: float
    """0 to 1 within the phase."""
    timestamp_s: float


class EngineReady(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="ready"):
    """Sent once: the core takes requests; carries what frontends need to know."""

    info: EngineInfo


class EngineDead(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="dead"):
    """The core's last word: the root cause in one line."""

    message: str
    is_configuration: bool = False
    """Something that the operator can fix: a setting or a checkpoint."""


class UtilityResult(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="result"):
    """Answer to a `UtilityCall`."""

    call_id: int
    result: bool | int | float | str | None = None
    error: str | None = None


CoreToClient = EngineCoreOutputs | StartupProgress | EngineReady | EngineDead | UtilityResult


class AddRequests(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="add"):
    """Queue these requests."""

    requests: list[EngineCoreRequest]


class AbortRequests(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="abort"):
    """Drop these requests in whatever state they are; unknown ids are ignored. Each ends with ABORT."""

    request_ids: list[str]


class UtilityCall(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="call"):
    """A control call out of a fixed set (`reset_prefix_cache`, `ping`), answered by `UtilityResult`."""

    call_id: int
    method: str


class Shutdown(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="shutdown"):
    """Abort what runs and exit cleanly."""


ClientToCore = AddRequests | AbortRequests | UtilityCall | Shutdown
