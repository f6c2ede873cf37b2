"""The scheduler: spends one token budget per step over requests that run and requests that wait.

There are no phases. A request has computed and known tokens, and a step moves the first towards the second; a
prompt in chunks, a prefix found in the cache, a resumed request and decode are all this one sum. Knows rows,
counters and blocks; nothing of tensors, text or sockets.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import compress

import numpy as np
from numpy.typing import NDArray

from engine.config.scheduler import SchedulerConfig
from engine.kv_cache.block import KVCacheBlock
from engine.kv_cache.manager import KVCacheManager
from engine.scheduler.queue import POLICIES, WaitingQueue
from engine.scheduler.results import StepEvents, trim_prompt_logprobs
from engine.scheduler.row_table import RowTable
from engine.scheduler.running_batch import RunningBatch
from engine.types.request import Request, RequestStatus
from engine.types.runner_output import ModelRunnerOutput, RowFailure
from engine.types.schedule import NewRow, RowBlocks, SchedulerOutput
from engine.types.wire import (
    EngineCoreOutputs,
    FinishReason,
    SchedulerStats,
    SequenceFinished,
    SequenceLogprobs,
    SequencePromptLogprobs,
    SequenceStarted,
)

logger = logging.getLogger(__name__)

ADMISSION_RESERVE = 0.01
"""Share of the blocks that admission leaves free while others run, so that a newcomer is not pushed out again
at the next block boundary. vLLM's V0 engine had the same share; without it a full pool preempts in turns."""

_Rows = NDArray[np.int64]


@dataclass(slots=True)
class _Step:
    """A step whose result is outstanding."""

    step_id: int
    start_s: float
    rows: _Rows
    rows_list: list[int]
    request_ids: list[str]
    num_tokens: int
    draining: list[tuple[Request, bool]] = field(default_factory=list)
    """Ended while the step was in flight, and whether what they computed may be reused: their blocks and rows
    are freed when it returns."""


class Scheduler:
    """Owns the rows, the queue and the order of both. Called by the engine core, from one thread.

    Life of a step: `schedule`, the executor computes, `update_from_output`. Requests may be added and aborted
    at any time between these calls, also while a step is in flight.

    Invariants: running requests stand in the policy's order, and only the last of them is ever preempted; so
    the first always makes progress, and every request ends.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        kv_cache: KVCacheManager,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_model_len: int,
        vocab_size: int,
    ) -> None:
        self._kv = kv_cache
        self._budget = max_num_batched_tokens
        self._threshold = config.long_prefill_token_threshold
        self._chunks_prefill = config.enable_chunked_prefill
        self._get_order_key = POLICIES[config.policy]
        self._vocab_size = vocab_size
        self._reserve = int(ADMISSION_RESERVE * kv_cache.pool.num_usable)
        self._table = RowTable(max_num_seqs, max_model_len)
        self._cacheable: _Rows = np.zeros(max_num_seqs, dtype=np.int64)
        """Column: tokens in full blocks whose hashes are known; they become findable while the row runs."""
        self._waiting = WaitingQueue()
        self._batch = RunningBatch()
        self._ones: list[int] = []
        self._requests: dict[str, Request] = {}
        self._in_flight: deque[_Step] = deque()
        self._finished_rows: list[int] = []
        self._events = StepEvents()
        self._num_received = 0
        self._num_preemptions = 0
        self._step_id = 0

    # ---- requests in and out

    @property
    def num_running(self) -> int:
        """Requests that hold a row and go on."""
        return len(self._requests) - len(self._waiting)

    @property
    def num_waiting(self) -> int:
        """Requests in the queue, preempted ones included."""
        return len(self._waiting)

    def has_unfinished(self) -> bool:
        """True while some request has not ended."""
        return bool(self._requests)

    def has_events(self) -> bool:
        """True while something is to be told that no step has carried out yet."""
        return self._events.is_pending

    def has_request(self, request_id: str) -> bool:
        """True while a request of this id has not ended."""
        return request_id in self._requests

    def add_request(self, request: Request) -> None:
        """Queue a request; its id is not in use."""
        assert request.request_id not in self._requests
        self._num_received += 1
        request.order_key = self._get_order_key(request, self._num_received)
        self._requests[request.request_id] = request
        self._waiting.push(request)

    def reject(self, request_id: str, message: str) -> None:
        """End a request with an error, whether it was queued or never got so far."""
        request = self._requests.get(request_id)
        if request is not None:
            self._finish(request, FinishReason.ERROR, message=message)
        else:
            self._events.finished.append(SequenceFinished(request_id, FinishReason.ERROR, message=message))

    def abort(self, request_ids: Iterable[str]) -> None:
        """End these requests in whatever state they are; ids that are not in use are ignored."""
        for request_id in request_ids:
            request = self._requests.get(request_id)
            if request is not None:
                self._finish(request, FinishReason.ABORT)

    def abort_all(self) -> None:
        """End every request."""
        self.abort(list(self._requests))

    def take_events(self) -> EngineCoreOutputs:
        """Return what is to be told outside a step: ends and errors of requests that never ran."""
        return self._build_outputs([], [], time.monotonic(), 0, [], [])

    # ---- schedule

    def schedule(self) -> SchedulerOutput:
        """Decide one step.

        Running requests come first, in order, then waiting ones as far as budget, rows and blocks reach. With
        nothing to compute the schedule has no rows; it must not be executed then.
        """
        # One step at a time: the known tokens of a row in flight are not known yet.
        assert not self._in_flight, "the step before has not returned"
        start_s = time.monotonic()
        self._step_id += 1
        new_blocks: list[RowBlocks] = []
        num_preempted = self._num_preemptions
        rows, counts = self._schedule_running(new_blocks)
        rows_list, request_ids, counts_list = self._as_lists(rows, counts)
        num_tokens = int(counts.sum())
        new_rows: list[NewRow] = []
        # A request that was just pushed out would be the first to come back: wait for a calmer step.
        if num_preempted == self._num_preemptions:
            admitted = self._admit_waiting(self._budget - num_tokens, start_s, new_rows)
            if admitted:
                rows_list = rows_list + [request.row for request, _ in admitted]
                request_ids = request_ids + [request.request_id for request, _ in admitted]
                counts_list = counts_list + [count for _, count in admitted]
                num_tokens += sum(count for _, count in admitted)
                rows = np.array(rows_list, dtype=np.int64)
        if not rows_list:
            return SchedulerOutput(self._step_id, [], [], [], [], [])
        finished_rows, self._finished_rows = self._finished_rows, []
        self._in_flight.append(_Step(self._step_id, start_s, rows, rows_list, request_ids, num_tokens))
        return SchedulerOutput(self._step_id, finished_rows, new_rows, new_blocks, rows_list, counts_list)

    def _schedule_running(self, new_blocks: list[RowBlocks]) -> tuple[_Rows, _Rows]:
        """Return the rows that go on and their token counts, with blocks allocated and counters advanced."""
        self._batch.close_gaps(self._table.is_live)
        table = self._table
        rows = self._batch.rows
        if not len(rows):
            return rows, rows
        counts = table.total[rows] - table.computed[rows]
        if self._threshold:
            np.minimum(counts, self._threshold, out=counts)
        spent = np.cumsum(counts)
        if spent[-1] > self._budget:
            counts = np.clip(self._budget - (spent - counts), 0, counts)
        targets = table.computed[rows] + counts
        short = self._kv.find_short_rows(rows, targets)
        if len(short):
            end = self._grow(rows, targets, short.tolist(), new_blocks)
            if end < len(rows):
                rows, counts, targets = rows[:end], counts[:end], targets[:end]
        if not counts.all():
            scheduled = counts > 0
            rows, counts, targets = rows[scheduled], counts[scheduled], targets[scheduled]
        # Only now, with nobody left to be preempted, is it certain that these tokens will be computed.
        for index in np.flatnonzero(table.computed[rows] < self._cacheable[rows]).tolist():
            self._kv.cache_blocks(self._request_at(int(rows[index])), int(targets[index]))
        table.computed[rows] = targets
        self._batch.close_gaps(self._table.is_live)
        return rows, counts

    def _grow(self, rows: _Rows, targets: _Rows, short: list[int], new_blocks: list[RowBlocks]) -> int:
        """Give the short rows their blocks in order, preempting from the end where the pool is dry.

        Returns:
            How many of `rows`, from the front, still run.
        """
        end = len(rows)
        for index in short:
            if index >= end:
                break
            row = int(rows[index])
            while (block_ids := self._kv.allocate_slots(row, int(targets[index]))) is None:
                end -= 1
                last = self._request_at(int(rows[end]))
                if end == 0:
                    self._finish(last, FinishReason.ERROR, message=self._too_long(int(targets[index])))
                    break
                self._preempt(last)
                if end == index:
                    break
            else:
                new_blocks.append(RowBlocks(row, block_ids))
        return end

    def _preempt(self, request: Request) -> None:
        """Push a running request back into the queue: its tokens stay, their keys and values go."""
        self._table.save_tokens(request)
        self._release(request)
        request.status = RequestStatus.WAITING
        request.num_preemptions += 1
        self._num_preemptions += 1
        self._waiting.push(request)
        self._batch.mark_gap()

    def _admit_waiting(self, budget: int, now_s: float, new_rows: list[NewRow]) -> list[tuple[Request, int]]:
        """Give rows and blocks to waiting requests in order; return each with its token count."""
        admitted: list[tuple[Request, int]] = []
        while budget > 0 and self._table.num_free:
            request = self._waiting.peek()
            if request is None:
                break
            blocks = self._find_prefix(request)
            if blocks is None:
                continue
            num_known = len(request.token_ids)
            num_hits = len(blocks) * self._kv.block_size
            count = self._cut_to_budget(request, num_known - num_hits, budget)
            if not count:
                # In order or not at all: a request never overtakes one that waits for room.
                if request.status is RequestStatus.WAITING:
                    break
                continue
            is_alone = not self._batch.rows_list and not admitted
            row = self._table.peek()
            block_ids = self._kv.allocate_slots(
                row, num_known, blocks, num_reserved=0 if is_alone else self._reserve
            )
            if block_ids is None:
                if not is_alone:
                    break
                self._finish(request, FinishReason.ERROR, message=self._too_long(num_known))
                continue
            new_rows.append(self._begin(request, row, num_hits, count, block_ids, now_s))
            admitted.append((request, count))
            budget -= count
        if admitted:
            self._batch.insert([request for request, _ in admitted])
        return admitted

    def _find_prefix(self, request: Request) -> list[KVCacheBlock] | None:
        """Return the cached blocks of a waiting request; None where looking failed and it has ended."""
        try:
            return self._kv.get_computed_blocks(request)
        except Exception:
            # The first stage that works on a request's own content: whatever it trips over ends it alone.
            logger.exception("prefix lookup failed", extra={"request_id": request.request_id})
            self._finish(request, FinishReason.ERROR, message="the request could not be scheduled")
            return None

    def _cut_to_budget(self, request: Request, num_tokens: int, budget: int) -> int:
        """Return how many tokens a new row computes in this step; 0 if it has to wait, or ended for ever."""
        if self._threshold:
            num_tokens = min(num_tokens, self._threshold)
        if num_tokens <= budget:
            return num_tokens
        if self._chunks_prefill:
            return budget
        if num_tokens > self._budget:
            message = (
                f"the prompt needs {num_tokens} tokens in one step, but a step has {self._budget} "
                "(chunked prefill is off); shorten it."
            )
            self._finish(request, FinishReason.ERROR, message=message)
        return 0

    def _begin(
        self, request: Request, row: int, num_hits: int, count: int, block_ids: list[int], now_s: float
    ) -> NewRow:
        popped = self._waiting.pop()
        assert popped is request
        token_ids = request.token_ids.tolist()
        taken = self._table.take(request, num_hits)
        assert taken == row
        self._kv.cache_blocks(request, num_hits + count)
        self._cacheable[row] = len(request.block_hashes) * self._kv.block_size
        self._table.computed[row] += count
        if not request.was_scheduled:
            request.was_scheduled = True
            self._kv.record_lookup(len(token_ids), num_hits)
            self._events.started.append(SequenceStarted(request.request_id, num_hits, now_s))
        return NewRow(
            row=row,
            request_id=request.request_id,
            token_ids=token_ids,
            num_prompt_tokens=request.num_prompt_tokens,
            num_computed_tokens=num_hits,
            block_ids=block_ids,
            params=request.params,
            seed=request.seed,
            stop_token_ids=list(request.stop_token_ids),
            bad_words_token_ids=[list(word) for word in request.bad_words_token_ids],
        )

    # ---- fold results back

    def update_from_output(self, schedule: SchedulerOutput, output: ModelRunnerOutput) -> EngineCoreOutputs:
        """Take in the result of the oldest step in flight and return what its requests are told.

        Raises:
            RuntimeError: the workers answered another step, named a row that was not part of it, or did not
                send one token id per row.
        """
        step = self._in_flight.popleft()
        if not step.step_id == schedule.step_id == output.step_id:
            raise RuntimeError(
                f"workers answered step {output.step_id} while step {step.step_id} was outstanding"
            )
        rows, request_ids, token_ids = step.rows, step.request_ids, output.sampled_token_ids
        if output.rows is not step.rows_list and output.rows != step.rows_list:
            rows = np.array(output.rows, dtype=np.int64)
            self._check_rows(step, rows)
            request_ids = [self._request_at(row).request_id for row in output.rows]
        sampled = np.array(token_ids, dtype=np.int64)
        if len(sampled) != len(rows):
            raise RuntimeError(f"workers sent {len(sampled)} token ids for {len(rows)} rows")
        failures = [*output.failures, *self._find_strange_tokens(rows, sampled)]
        self._fail(failures)
        is_live = self._table.is_live[rows]
        if not is_live.all():
            kept = is_live.tolist()
            rows, sampled = rows[is_live], sampled[is_live]
            request_ids, token_ids = list(compress(request_ids, kept)), list(compress(token_ids, kept))
        logprobs, prompt_logprobs = self._collect_logprobs(output)
        self._append_tokens(rows, sampled)
        failed_rows = {failure.row for failure in failures}
        for request, is_reusable in step.draining:
            self._release(request, is_reusable=is_reusable and request.row not in failed_rows)
        return self._build_outputs(
            request_ids, token_ids, step.start_s, step.num_tokens, logprobs, prompt_logprobs
        )

    def _append_tokens(self, rows: _Rows, sampled: _Rows) -> None:
        table = self._table
        totals = table.total[rows]
        table.token_ids[rows, totals] = sampled
        totals += 1
        table.total[rows] = totals
        is_stop = table.find_stops(rows, sampled)
        is_over = is_stop | (totals >= table.max_total[rows])
        for index in np.flatnonzero(is_over).tolist():
            request = self._request_at(int(rows[index]))
            if is_stop[index]:
                token_id = int(sampled[index])
                is_eos = token_id in request.eos_token_ids
                self._finish(request, FinishReason.STOP, stop_reason=None if is_eos else token_id)
            else:
                self._finish(request, FinishReason.LENGTH)

    def _fail(self, failures: Iterable[RowFailure]) -> None:
        """End failed rows with an error; what they computed is not trusted."""
        for failure in failures:
            request = self._table.requests[failure.row]
            if request is not None and request.status is RequestStatus.RUNNING:
                logger.warning("failed: %s", failure.message, extra={"request_id": request.request_id})
                self._finish(request, FinishReason.ERROR, message=failure.message, is_reusable=False)

    def _find_strange_tokens(self, rows: _Rows, sampled: _Rows) -> list[RowFailure]:
        is_strange = (sampled < 0) | (sampled >= self._vocab_size)
        if not is_strange.any():
            return []
        message = "a token id outside the vocabulary was sampled"
        return [RowFailure(row, message) for row in rows[is_strange].tolist()]

    def _collect_logprobs(
        self, output: ModelRunnerOutput
    ) -> tuple[list[SequenceLogprobs], list[SequencePromptLogprobs]]:
        logprobs = [
            SequenceLogprobs(self._request_at(entry.row).request_id, entry.logprobs)
            for entry in output.logprobs
            if self._table.is_live[entry.row]
        ]
        prompt_logprobs: list[SequencePromptLogprobs] = []
        for entry in output.prompt_logprobs:
            if self._table.is_live[entry.row]:
                request = self._request_at(entry.row)
                fresh = trim_prompt_logprobs(request, entry)
                if fresh is not None:
                    prompt_logprobs.append(fresh)
        return logprobs, prompt_logprobs

    def _check_rows(self, step: _Step, rows: _Rows) -> None:
        strangers = rows[~np.isin(rows, step.rows)]
        if len(strangers):
            raise RuntimeError(
                f"workers sampled rows {strangers.tolist()}, which step {step.step_id} did not hold"
            )

    def _build_outputs(
        self,
        request_ids: list[str],
        token_ids: list[int],
        start_s: float,
        num_tokens: int,
        logprobs: list[SequenceLogprobs],
        prompt_logprobs: list[SequencePromptLogprobs],
    ) -> EngineCoreOutputs:
        now_s = time.monotonic()
        started, finished = self._events.take()
        return EngineCoreOutputs(
            timestamp_s=now_s,
            request_ids=request_ids,
            token_ids=token_ids,
            started=started,
            finished=finished,
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
            stats=self._take_stats(num_tokens, now_s - start_s),
        )

    def _take_stats(self, num_tokens: int, step_time_s: float) -> SchedulerStats:
        queries, hits = self._kv.prefix_counter.take()
        num_preemptions, self._num_preemptions = self._num_preemptions, 0
        return SchedulerStats(
            num_running=self.num_running,
            num_waiting=self.num_waiting,
            kv_cache_usage=self._kv.usage,
            num_total_blocks=self._kv.pool.num_usable,
            num_used_blocks=self._kv.pool.num_used,
            prefix_cache_queries=queries,
            prefix_cache_hits=hits,
            num_preemptions=num_preemptions,
            num_scheduled_tokens=num_tokens,
            step_time_s=step_time_s,
        )

    # ---- ends

    def _finish(
        self,
        request: Request,
        reason: FinishReason,
        *,
        stop_reason: int | None = None,
        message: str | None = None,
        is_reusable: bool = True,
    ) -> None:
        """End a request that has not ended yet; its end is told with the next outputs."""
        was_running = request.status is RequestStatus.RUNNING
        request.status = RequestStatus.FINISHED
        del self._requests[request.request_id]
        self._events.finished.append(
            SequenceFinished(request.request_id, reason, stop_reason, message, request.num_preemptions)
        )
        if not was_running:
            self._waiting.forget_one()
            return
        self._batch.mark_gap()
        self._table.is_live[request.row] = False
        step = next((step for step in reversed(self._in_flight) if request.row in step.rows_list), None)
        if step is not None:
            # The step may still write these blocks, and its result still names this row.
            step.draining.append((request, is_reusable))
        else:
            self._release(request, is_reusable=is_reusable)

    def _release(self, request: Request, *, is_reusable: bool = True) -> None:
        """Take back row and blocks, and tell the workers with the next step."""
        self._kv.free(request, self._table.computed_token_ids(request.row), is_reusable=is_reusable)
        self._finished_rows.append(request.row)
        self._table.give_back(request)

    def _too_long(self, num_tokens: int) -> str:
        usable = self._kv.pool.num_usable * self._kv.block_size
        return f"the request needs room for {num_tokens} tokens, but the whole KV cache holds {usable}."

    # ---- rows

    def _request_at(self, row: int) -> Request:
        request = self._table.requests[row]
        assert request is not None, f"row {row} is free"
        return request

    def _as_lists(self, rows: _Rows, counts: _Rows) -> tuple[list[int], list[str], list[int]]:
        """Return rows, request ids and counts as lists, shared with the batch where they are the same."""
        batch = self._batch
        if len(rows) == len(batch.rows_list):
            rows_list, request_ids = batch.rows_list, batch.request_ids
        else:
            rows_list = rows.tolist()
            request_ids = [self._request_at(row).request_id for row in rows_list]
        if len(rows) == counts.sum():
            if len(self._ones) != len(rows):
                self._ones = [1] * len(rows)
            return rows_list, request_ids, self._ones
        return rows_list, request_ids, counts.tolist()
