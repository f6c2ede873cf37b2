"""What callers get: text, ids, reasons. Made by the output processor only."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True, kw_only=True)
class Logprob:
    """One candidate at one position."""

    logprob: float
    rank: int | None
    """1-based rank in the vocabulary; None where it was not computed."""
    decoded_token: str | None
    """Text of the token alone; U+FFFD stands for bytes that are no character by themselves."""
    token_bytes: bytes | None = None
    """The token's own bytes; None without a tokenizer."""


PositionLogprobs = dict[int, Logprob]
"""Token id -> Logprob; the sampled (or prompt) token comes first."""


@dataclass(slots=True, kw_only=True)
class CompletionOutput:
    """One of the n outputs of a request; cumulative or delta as the request asked."""

    index: int
    text: str
    token_ids: list[int]
    logprobs: list[PositionLogprobs] | None = None
    cumulative_logprob: float | None = None
    finish_reason: str | None = None
    """`stop`, `length`, `abort` or `error`."""
    stop_reason: int | str | None = None
    """The stop string or stop token id; None for end-of-sequence."""
    error: str | None = None
    """What went wrong, for `error`."""

    @property
    def is_finished(self) -> bool:
        """True once this output is complete."""
        return self.finish_reason is not None


@dataclass(slots=True, kw_only=True)
class RequestMetrics:
    """Times of one request on the monotonic clock, seconds; None until known."""

    arrival_time_s: float
    first_scheduled_time_s: float | None = None
    first_token_time_s: float | None = None
    last_token_time_s: float | None = None
    finished_time_s: float | None = None
    num_preemptions: int = 0


@dataclass(slots=True, kw_only=True)
class RequestOutput:
    """State of one request as its caller sees it."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    is_finished: bool
    prompt_logprobs: list[PositionLogprobs | None] | None = None
    """One entry per prompt token, the first is None."""
    num_cached_tokens: int = 0
    metrics: RequestMetrics | None = None
    prompt_text_pieces: list[str] = field(default_factory=list)
    """Text of each prompt token, only where prompt logprobs were asked for (for `echo`)."""
