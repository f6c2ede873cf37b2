"""What the core sends after each step, sorted to the requests it belongs to.

Per token: append the id, decode it, look for stop strings, tell the request. A sequence that a stop string
ends is over at once for its caller; the core hears of it by the ids to abort that `process` returns. Trouble
with one sequence ends that sequence with an error and nothing else. Knows nothing of sockets or event loops.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from engine.frontend.detokenizer import TokenText
from engine.frontend.input_processor import ProcessedInput
from engine.frontend.request_state import FinishedRequest, RequestState, SequenceState
from engine.types.wire import (
    EngineCoreOutputs,
    FinishReason,
    SequenceFinished,
    SequenceLogprobs,
    SequencePromptLogprobs,
)

if TYPE_CHECKING:
    from engine.frontend.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

_FAILED = "The output of this request could not be processed; other requests go on."


class OutputProcessor:
    """Owns every request between `add` and its end.

    Attributes:
        num_waiting: sequences the core has not started yet.
        num_running: sequences started and not ended.
        on_finished: told of each request that ends, whatever the reason.
    """

    def __init__(
        self, tokenizer: Tokenizer | None, on_finished: Callable[[FinishedRequest], None] | None = None
    ) -> None:
        self.table = None if tokenizer is None else TokenText(tokenizer)
        self.on_finished = on_finished
        self.num_waiting = 0
        self.num_running = 0
        self._sequences: dict[str, SequenceState] = {}

    @property
    def has_unfinished(self) -> bool:
        """True while any request has not ended."""
        return bool(self._sequences)

    def add(
        self,
        request_id: str,
        processed: ProcessedInput,
        arrival_time_s: float,
        on_ready: Callable[[], None] | None = None,
    ) -> RequestState:
        """Take a request in; its outputs are taken from the state returned."""
        state = RequestState(request_id, processed, self.table, arrival_time_s, on_ready)
        for sequence in state.sequences:
            assert sequence.sequence_id not in self._sequences, "internal request ids are unique"
            self._sequences[sequence.sequence_id] = sequence
        self.num_waiting += len(state.sequences)
        return state

    def process(self, outputs: EngineCoreOutputs) -> list[str]:
        """Sort one step's outputs to their requests; return the sequence ids that the core must abort."""
        to_abort: list[str] = []
        for started in outputs.started:
            self._start(started.request_id, started.num_cached_tokens, started.scheduled_time_s)
        self._add_logprobs(outputs, to_abort)
        finished = {record.request_id: record for record in outputs.finished}
        self._append_tokens(outputs, finished, to_abort)
        for sequence_id, record in finished.items():
            sequence = self._sequences.get(sequence_id)
            if sequence is not None:
                sequence.request.metrics.num_preemptions += record.num_preemptions
                self._finish(sequence, record.reason, record.stop_reason, record.message)
        return [sequence_id for sequence_id in to_abort if sequence_id not in finished]

    def abort(self, state: RequestState) -> list[str]:
        """End what still runs of a request with `abort`; return the sequence ids that the core must abort."""
        sequence_ids = []
        for sequence in state.sequences:
            if sequence.finish_reason is None:
                sequence_ids.append(sequence.sequence_id)
                self._finish(sequence, FinishReason.ABORT, None, None)
        return sequence_ids

    def _append_tokens(
        self, outputs: EngineCoreOutputs, finished: dict[str, SequenceFinished], to_abort: list[str]
    ) -> None:
        sequences = self._sequences
        timestamp_s = outputs.timestamp_s
        silent = self._find_silent_tokens(outputs, finished) if finished else frozenset()
        for i, (sequence_id, token_id) in enumerate(zip(outputs.request_ids, outputs.token_ids, strict=True)):
            sequence = sequences.get(sequence_id)
            if sequence is None:  # ended here already, while the core went on
                continue
            request = sequence.request
            last_time_s = sequence.last_token_time_s
            if last_time_s is not None:
                request.inter_token_times_s.append(timestamp_s - last_time_s)
            elif request.metrics.first_token_time_s is None:
                request.metrics.first_token_time_s = timestamp_s
            sequence.last_token_time_s = request.metrics.last_token_time_s = timestamp_s
            try:
                is_stopped = sequence.append(token_id, is_text=i not in silent)
            except Exception:
                # The boundary of one request: whatever a tokenizer does with an odd id, the loop lives on.
                self._fail(sequence, to_abort)
                continue
            if is_stopped:
                sequence.finish_at_stop_string()
                to_abort.append(sequence_id)
                self._release(sequence)
            elif sequence_id not in finished:
                request.mark(sequence)

    def _find_silent_tokens(
        self, outputs: EngineCoreOutputs, finished: dict[str, SequenceFinished]
    ) -> frozenset[int]:
        """Positions of tokens that ended their sequence by being a stop token: they are no text."""
        last_positions: dict[str, int] = {}
        for i, sequence_id in enumerate(outputs.request_ids):
            record = finished.get(sequence_id)
            if record is None or record.reason is not FinishReason.STOP:
                continue
            sequence = self._sequences.get(sequence_id)
            if sequence is not None and not sequence.request.params.include_stop_str_in_output:
                last_positions[sequence_id] = i
        return frozenset(last_positions.values())

    def _start(self, sequence_id: str, num_cached_tokens: int, scheduled_time_s: float) -> None:
        sequence = self._sequences.get(sequence_id)
        if sequence is None or sequence.is_started:
            return
        sequence.is_started = True
        self.num_waiting -= 1
        self.num_running += 1
        request = sequence.request
        if request.metrics.first_scheduled_time_s is None:
            request.metrics.first_scheduled_time_s = scheduled_time_s
            request.num_cached_tokens = num_cached_tokens

    def _add_logprobs(self, outputs: EngineCoreOutputs, to_abort: list[str]) -> None:
        records: list[SequenceLogprobs | SequencePromptLogprobs] = [
            *outputs.prompt_logprobs,
            *outputs.logprobs,
        ]
        for record in records:
            sequence = self._sequences.get(record.request_id)
            if sequence is None:
                continue
            try:
                if isinstance(record, SequencePromptLogprobs):
                    sequence.request.add_prompt_logprobs(record.start, record.logprobs)
                else:
                    sequence.add_logprobs(record.logprobs)
            except Exception:  # the boundary of one request, as above
                self._fail(sequence, to_abort)

    def _fail(self, sequence: SequenceState, to_abort: list[str]) -> None:
        logger.exception("request %s: its output could not be processed", sequence.request.request_id)
        to_abort.append(sequence.sequence_id)
        self._finish(sequence, FinishReason.ERROR, None, _FAILED)

    def _finish(
        self, sequence: SequenceState, reason: FinishReason, stop_reason: int | None, message: str | None
    ) -> None:
        sequence.finish(reason, stop_reason, message)
        self._release(sequence)

    def _release(self, sequence: SequenceState) -> None:
        """Forget a sequence that has ended and tell its request."""
        del self._sequences[sequence.sequence_id]
        if sequence.is_started:
            self.num_running -= 1
        else:
            self.num_waiting -= 1
        request = sequence.request
        request.num_unfinished -= 1
        if request.is_finished:
            request.metrics.finished_time_s = time.monotonic()
        request.mark(sequence)
        if request.is_finished and self.on_finished is not None:
            self.on_finished(request.build_finished_record())
