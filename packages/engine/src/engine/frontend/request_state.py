"""What the frontend remembers of a request while it runs: text, ids, logprobs and times of its n sequences.

The output processor writes, one token at a time; the consumer takes, whenever it is ready, everything since
it last took. So a slow consumer costs no queue: its outputs merge by themselves. Knows nothing of the core.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from engine.frontend.detokenizer import IncrementalDetokenizer, TokenText
from engine.frontend.input_processor import ProcessedInput
from engine.frontend.logprobs import build_positions, build_prompt_pieces
from engine.frontend.stop_strings import StopScanner
from engine.types.outputs import CompletionOutput, PositionLogprobs, RequestMetrics, RequestOutput
from engine.types.runner_output import TokenLogprobs
from engine.types.sampling_params import RequestOutputKind
from engine.types.wire import FinishReason


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedRequest:
    """What an observer is told of a request that ended, however it ended."""

    request_id: str
    num_prompt_tokens: int
    num_output_tokens: int
    """Over all n completions."""
    num_cached_tokens: int
    finish_reason: str
    """`stop`, `length`, `abort` or `error`; of the completion that ended last."""
    metrics: RequestMetrics
    inter_token_times_s: list[float] = field(default_factory=list)
    """Seconds between tokens of the same completion, in the order they came."""


class SequenceState:
    """One completion of a request."""

    __slots__ = (
        "_detokenizer",
        "_is_delta",
        "_num_taken_tokens",
        "_pieces",
        "_scanner",
        "_text",
        "cumulative_logprob",
        "error",
        "finish_reason",
        "index",
        "is_dirty",
        "is_started",
        "last_token_time_s",
        "logprobs",
        "min_tokens",
        "num_untaken_tokens",
        "request",
        "sequence_id",
        "stop_reason",
        "token_ids",
    )

    def __init__(self, request: RequestState, index: int, sequence_id: str, table: TokenText | None) -> None:
        params = request.params
        self.request = request
        self.index = index
        self.sequence_id = sequence_id
        self.min_tokens = params.min_tokens
        self.token_ids: list[int] = []
        self.logprobs: list[PositionLogprobs] | None = None
        self.cumulative_logprob: float | None = None
        if params.logprobs is not None or params.logprob_token_ids is not None:
            self.logprobs, self.cumulative_logprob = [], 0.0
        self.finish_reason: FinishReason | None = None
        self.stop_reason: int | str | None = None
        self.error: str | None = None
        self.is_started = False
        self.is_dirty = False
        self.num_untaken_tokens = 0
        self.last_token_time_s: float | None = None
        self._is_delta = params.output_kind is RequestOutputKind.DELTA
        self._num_taken_tokens = 0
        self._pieces: list[str] = []
        self._text = ""
        self._detokenizer: IncrementalDetokenizer | None = None
        self._scanner: StopScanner | None = None
        if table is not None:
            self._detokenizer = IncrementalDetokenizer(
                table,
                skip_special_tokens=params.skip_special_tokens,
                spaces_between_special_tokens=params.spaces_between_special_tokens,
            )
            if params.stop:
                self._scanner = StopScanner(params.stop, include_stop=params.include_stop_str_in_output)

    def append(self, token_id: int, *, is_text: bool = True) -> bool:
        """Add a token; return True where its text completes a stop string, which then ends the sequence.

        Args:
            token_id: the token.
            is_text: whether it contributes text (a stop token that ends the sequence does not).
        """
        self.token_ids.append(token_id)
        self.num_untaken_tokens += 1
        if self._detokenizer is None or not is_text:
            return False
        text = self._detokenizer.feed(token_id)
        if self._scanner is None:
            if text:
                self._pieces.append(text)
            return False
        return self._scan(text, may_stop=len(self.token_ids) > self.min_tokens)

    def add_logprobs(self, logprobs: TokenLogprobs) -> None:
        """Add the logprobs of the tokens of this step; called before their `append`."""
        if self.logprobs is None or self.cumulative_logprob is None:
            return
        are_ranked = self.request.params.logprob_token_ids is None
        self.logprobs += build_positions(logprobs, self.request.table, are_ranked=are_ranked)
        self.cumulative_logprob += sum(values[0] for values in logprobs.logprobs)

    def finish(self, reason: FinishReason, stop_reason: int | str | None, error: str | None) -> None:
        """End the sequence; what a stop string or a character held back becomes text."""
        if self._detokenizer is not None:
            tail = self._detokenizer.finish()
            if self._scanner is not None:
                if tail and self._scan(tail, may_stop=len(self.token_ids) > self.min_tokens):
                    reason, stop_reason, error = FinishReason.STOP, self.stop_reason, None
                tail = self._scanner.finish()
            if tail:
                self._pieces.append(tail)
        self._set_finished(reason, stop_reason, error)

    def finish_at_stop_string(self) -> None:
        """End the sequence where `append` found a stop string."""
        self._set_finished(FinishReason.STOP, self.stop_reason, None)

    def take(self) -> CompletionOutput:
        """Return the output so far, or what is new of it, as the request asked."""
        new_text = "".join(self._pieces)
        self._pieces.clear()
        start = self._num_taken_tokens if self._is_delta else 0
        if not self._is_delta:
            new_text = self._text = self._text + new_text
        self._num_taken_tokens = len(self.token_ids)
        self.num_untaken_tokens = 0
        self.is_dirty = False
        return CompletionOutput(
            index=self.index,
            text=new_text,
            token_ids=self.token_ids[start:],
            logprobs=None if self.logprobs is None else self.logprobs[start:],
            cumulative_logprob=self.cumulative_logprob,
            finish_reason=None if self.finish_reason is None else self.finish_reason.text,
            stop_reason=self.stop_reason,
            error=self.error,
        )

    def _scan(self, text: str, *, may_stop: bool) -> bool:
        assert self._scanner is not None
        release, stop = self._scanner.feed(text, may_stop=may_stop)
        if release:
            self._pieces.append(release)
        if stop is None:
            return False
        self.stop_reason = stop
        return True

    def _set_finished(self, reason: FinishReason, stop_reason: int | str | None, error: str | None) -> None:
        self.finish_reason, self.stop_reason, self.error = reason, stop_reason, error
        if self.logprobs is not None:
            # A stop string may end the sequence before the last token of a step.
            del self.logprobs[len(self.token_ids) :]


class RequestState:
    """One request and its n sequences.

    Args:
        request_id: the caller's own id; it need not be unique.
        processed: what the input processor made of it.
        table: the tokenizer's table; None without a tokenizer.
        arrival_time_s: on the monotonic clock.
        on_ready: called once when there is something to take, again only after it was taken.
    """

    __slots__ = (
        "_is_prompt_taken",
        "_output_kind",
        "_prompt",
        "_table",
        "inter_token_times_s",
        "is_ready",
        "metrics",
        "num_cached_tokens",
        "num_unfinished",
        "on_ready",
        "params",
        "prompt_logprobs",
        "prompt_token_ids",
        "request_id",
        "sequences",
    )

    def __init__(
        self,
        request_id: str,
        processed: ProcessedInput,
        table: TokenText | None,
        arrival_time_s: float,
        on_ready: Callable[[], None] | None = None,
    ) -> None:
        self.request_id = request_id
        self.params = processed.params
        self.prompt_token_ids = processed.prompt_token_ids
        self.metrics = RequestMetrics(arrival_time_s=arrival_time_s)
        self.inter_token_times_s: list[float] = []
        self.num_cached_tokens = 0
        self.on_ready = on_ready
        self.is_ready = False
        self.prompt_logprobs: list[PositionLogprobs | None] | None = None
        if self.params.prompt_logprobs is not None:
            self.prompt_logprobs = [None]
        self._prompt = processed.prompt
        self._table = table if self.params.detokenize else None
        self._output_kind = self.params.output_kind
        self._is_prompt_taken = False
        self.sequences = [
            SequenceState(self, index, request.request_id, self._table)
            for index, request in enumerate(processed.requests)
        ]
        self.num_unfinished = len(self.sequences)

    @property
    def is_finished(self) -> bool:
        """True once every sequence has ended."""
        return self.num_unfinished == 0

    @property
    def table(self) -> TokenText | None:
        """The tokenizer's table where the request wants text."""
        return self._table

    def add_prompt_logprobs(self, start: int, logprobs: TokenLogprobs) -> None:
        """Add a stretch of prompt logprobs; a stretch computed anew after a preemption counts once."""
        if self.prompt_logprobs is None:
            return
        num_known = len(self.prompt_logprobs)
        if start > num_known:
            raise ValueError(f"prompt logprobs start at {start}, but only {num_known} positions are known")
        positions = build_positions(logprobs, self._table, are_ranked=True)
        self.prompt_logprobs += positions[num_known - start :]

    def mark(self, sequence: SequenceState) -> None:
        """Note that a sequence moved; announce it if the request wants to hear of it now."""
        if self._output_kind is RequestOutputKind.FINAL_ONLY:
            if self.num_unfinished:
                return
        elif sequence.finish_reason is None:
            num_new = sequence.num_untaken_tokens
            if num_new < self.params.stream_interval and num_new < len(sequence.token_ids):
                return
        sequence.is_dirty = True
        if not self.is_ready:
            self.is_ready = True
            if self.on_ready is not None:
                self.on_ready()

    def take(self) -> RequestOutput:
        """Return what there is to tell since the last call, and count it as told."""
        self.is_ready = False
        takes_all = self._output_kind is RequestOutputKind.FINAL_ONLY
        outputs = [sequence.take() for sequence in self.sequences if takes_all or sequence.is_dirty]
        prompt_logprobs, pieces = self._take_prompt_logprobs()
        return RequestOutput(
            request_id=self.request_id,
            prompt=self._prompt,
            prompt_token_ids=self.prompt_token_ids,
            outputs=outputs,
            is_finished=self.is_finished,
            prompt_logprobs=prompt_logprobs,
            num_cached_tokens=self.num_cached_tokens,
            metrics=self.metrics,
            prompt_text_pieces=pieces,
        )

    def build_finished_record(self) -> FinishedRequest:
        """Return what observers are told once the request is over."""
        last = max(self.sequences, key=lambda s: s.last_token_time_s or 0.0)
        reason = last.finish_reason or FinishReason.ABORT
        return FinishedRequest(
            request_id=self.request_id,
            num_prompt_tokens=len(self.prompt_token_ids),
            num_output_tokens=sum(len(sequence.token_ids) for sequence in self.sequences),
            num_cached_tokens=self.num_cached_tokens,
            finish_reason=reason.text,
            metrics=self.metrics,
            inter_token_times_s=self.inter_token_times_s,
        )

    def _take_prompt_logprobs(self) -> tuple[list[PositionLogprobs | None] | None, list[str]]:
        if self.prompt_logprobs is None:
            return None, []
        if self._output_kind is RequestOutputKind.DELTA and self._is_prompt_taken:
            return None, []
        self._is_prompt_taken = True
        pieces = [] if self._table is None else build_prompt_pieces(self.prompt_token_ids, self._table)
        return self.prompt_logprobs, pieces
