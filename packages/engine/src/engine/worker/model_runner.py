"""Turns a scheduler output into a batch, runs it, and turns the result into host lists.

Holds no question of how a forward runs (the runner's) nor how a token is chosen (the sampler's).
Letters: T tokens, B requests, S sampling lines of this step; R rows of the tables.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from engine.execution.input_batch import InputBatch, InputBuffers
from engine.execution.runner import ForwardRunner, Model
from engine.forward_context import AttentionMetadata
from engine.sampling.batch import SamplerOutput, SamplingBatch
from engine.sampling.sampler import Sampler
from engine.types.runner_output import ModelRunnerOutput, RowFailure, RowLogprobs
from engine.types.schedule import SchedulerOutput
from engine.worker.block_table import BlockTable
from engine.worker.logprobs import compute_row_logprobs
from engine.worker.prompt_logprobs import PromptLogprobs
from engine.worker.request_table import RequestTable

IntArray = npt.NDArray[np.int64]

_NO_CHOICE = (
    "no token could be chosen: the logits are not finite, or every token was forbidden by the request"
)
_STRANGE = "a token id outside the vocabulary was sampled"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerLimits:
    """Sizes that fix every buffer."""

    max_num_seqs: int
    max_num_tokens: int
    max_model_len: int
    block_size: int
    vocab_size: int


class ModelRunner:
    """Owns the request table, block table, input buffers and sampler of one rank."""

    def __init__(
        self, model: Model, runner: ForwardRunner, limits: RunnerLimits, device: torch.device
    ) -> None:
        self._runner = runner
        self._limits = limits
        self._device = device
        max_blocks = -(-limits.max_model_len // limits.block_size)
        self._requests = RequestTable(limits.max_num_seqs, limits.max_model_len)
        self._blocks = BlockTable(limits.max_num_seqs, max_blocks)
        self._buffers = InputBuffers(limits.max_num_tokens, limits.max_num_seqs, max_blocks, device)
        self._sampler = Sampler(limits.max_num_seqs, limits.vocab_size, device)
        self._prompt_logprobs = PromptLogprobs(model.compute_logits, self._requests, limits.vocab_size)

    @torch.inference_mode()
    def execute(self, schedule: SchedulerOutput) -> ModelRunnerOutput:
        """Run one step."""
        self._apply_changes(schedule)
        if not schedule.rows:
            return ModelRunnerOutput(schedule.step_id, [], [])
        rows_B = np.array(schedule.rows, np.int64)
        num_scheduled_B = np.array(schedule.num_scheduled_tokens, np.int64)
        batch, is_sampling_B = self._build_batch(rows_B, num_scheduled_B)
        prompt_plan = self._prompt_logprobs.plan(rows_B, num_scheduled_B)
        if prompt_plan is not None:
            batch.prompt_indices = torch.from_numpy(prompt_plan.token_indices).to(self._device)
        sampling = self._build_sampling_batch(rows_B[is_sampling_B])
        output = self._runner.run(batch, lambda logits: self._sampler.sample(logits, sampling))
        self._requests.num_computed_R[rows_B] += num_scheduled_B
        prompt_logprobs = []
        if prompt_plan is not None and output.prompt_hidden is not None:
            prompt_logprobs = self._prompt_logprobs.compute(prompt_plan, output.prompt_hidden)
        if output.sampled is None:
            return ModelRunnerOutput(schedule.step_id, [], [], prompt_logprobs=prompt_logprobs)
        rows, token_ids, failures = self._collect(output.sampled, sampling)
        return ModelRunnerOutput(
            schedule.step_id,
            rows,
            token_ids,
            logprobs=self._collect_logprobs(output.sampled, sampling),
            prompt_logprobs=prompt_logprobs,
            failures=failures,
        )

    def run_padding(self, num_tokens: int) -> None:
        """Run tokens that belong to no request, to touch every path before the first one."""
        with torch.inference_mode():
            self._fill_padding(num_tokens)
            batch = InputBatch(
                num_tokens=num_tokens,
                input_ids_T=self._buffers.input_ids.upload(num_tokens),
                positions_T=self._buffers.positions.upload(num_tokens),
                attention=self._build_metadata(1, num_tokens, num_tokens, num_tokens),
                logits_indices_S=torch.zeros(1, dtype=torch.int64, device=self._device),
            )
            nobody = SamplingBatch(
                rows_B=np.zeros(1, np.int64),
                num_tokens_B=np.full(1, num_tokens, np.int64),
                num_output_tokens_B=np.zeros(1, np.int64),
                token_ids_RL=self._requests.token_ids_RL,
                device=self._device,
            )
            self._runner.run(batch, lambda logits: self._sampler.sample(logits, nobody))

    def _apply_changes(self, schedule: SchedulerOutput) -> None:
        for row in schedule.finished_rows:
            self._requests.remove(row)
            self._sampler.remove(row)
        for new_row in schedule.new_rows:
            self._requests.add(new_row)
            self._blocks.set(new_row.row, new_row.block_ids)
            self._sampler.add(new_row)
        for row_blocks in schedule.new_blocks:
            self._blocks.append(row_blocks.row, row_blocks.block_ids)

    def _build_batch(
        self, rows_B: IntArray, num_scheduled_B: IntArray
    ) -> tuple[InputBatch, npt.NDArray[np.bool_]]:
        requests, buffers = self._requests, self._buffers
        num_requests, block_size = len(rows_B), self._limits.block_size
        computed_B = requests.num_computed_R[rows_B]
        seq_lens_B = computed_B + num_scheduled_B
        ends_B = np.cumsum(num_scheduled_B)
        num_tokens = int(ends_B[-1])
        if num_tokens == num_requests:  # one token each: no need to spread rows over tokens
            rows_T, positions_T = rows_B, computed_B
        else:
            rows_T = np.repeat(rows_B, num_scheduled_B)
            positions_T = np.arange(num_tokens) + np.repeat(seq_lens_B - ends_B, num_scheduled_B)
        buffers.positions.numpy[:num_tokens] = positions_T
        buffers.input_ids.numpy[:num_tokens] = requests.token_ids_RL[rows_T, positions_T]
        blocks_T = self._blocks.block_ids_RM[rows_T, positions_T // block_size].astype(np.int64)
        buffers.slot_mapping.numpy[:num_tokens] = blocks_T * block_size + positions_T % block_size
        buffers.query_start_loc.numpy[0] = 0
        buffers.query_start_loc.numpy[1 : num_requests + 1] = ends_B
        buffers.seq_lens.numpy[:num_requests] = seq_lens_B
        max_seq_len = int(seq_lens_B.max())
        num_blocks = -(-max_seq_len // block_size)
        buffers.block_table.numpy[:num_requests, :num_blocks] = self._blocks.block_ids_RM[rows_B, :num_blocks]
        is_sampling_B = seq_lens_B == requests.num_tokens_R[rows_B]
        last_tokens_S = ends_B[is_sampling_B] - 1
        buffers.logits_indices.numpy[: len(last_tokens_S)] = last_tokens_S
        batch = InputBatch(
            num_tokens=num_tokens,
            input_ids_T=buffers.input_ids.upload(num_tokens),
            positions_T=buffers.positions.upload(num_tokens),
            attention=self._build_metadata(num_requests, num_tokens, int(num_scheduled_B.max()), max_seq_len),
            logits_indices_S=buffers.logits_indices.upload(len(last_tokens_S)),
        )
        return batch, is_sampling_B

    def _build_metadata(
        self, num_requests: int, num_tokens: int, max_query_len: int, max_seq_len: int
    ) -> AttentionMetadata:
        buffers = self._buffers
        return AttentionMetadata(
            query_start_loc_B1=buffers.query_start_loc.upload(num_requests + 1),
            seq_lens_B=buffers.seq_lens.upload(num_requests),
            block_table_BM=buffers.block_table.upload(num_requests),
            slot_mapping_T=buffers.slot_mapping.upload(num_tokens),
            num_requests=num_requests,
            num_tokens=num_tokens,
            max_query_len=max_query_len,
            max_seq_len=max_seq_len,
        )

    def _fill_padding(self, num_tokens: int) -> None:
        buffers = self._buffers
        buffers.input_ids.numpy[:num_tokens] = 0
        buffers.positions.numpy[:num_tokens] = 0
        buffers.slot_mapping.numpy[:num_tokens] = -1
        buffers.query_start_loc.numpy[:2] = (0, num_tokens)
        buffers.seq_lens.numpy[0] = num_tokens
        # Block 0 is the null block: its content means nothing to anybody.
        buffers.block_table.numpy[0] = 0

    def _build_sampling_batch(self, rows_S: IntArray) -> SamplingBatch:
        num_tokens_S = self._requests.num_tokens_R[rows_S]
        return SamplingBatch(
            rows_B=rows_S,
            num_tokens_B=num_tokens_S,
            num_output_tokens_B=num_tokens_S - self._requests.num_prompt_tokens_R[rows_S],
            token_ids_RL=self._requests.token_ids_RL,
            device=self._device,
        )

    def _collect(
        self, sampled: SamplerOutput, batch: SamplingBatch
    ) -> tuple[list[int], list[int], list[RowFailure]]:
        # The one copy from the device: everything enqueued before it is done when it returns.
        both = torch.stack([sampled.token_ids_B, sampled.failed_B.long()]).cpu().numpy()
        token_ids_B, is_failed_B = both[0], both[1].astype(np.bool_)
        # A sampler's fault must never become an input id (out of range reads foreign memory).
        is_strange_B = (token_ids_B < 0) | (token_ids_B >= self._limits.vocab_size)
        if not (is_failed_B.any() or is_strange_B.any()):
            self._requests.append(batch.rows_B, token_ids_B)
            return batch.rows_B.tolist(), token_ids_B.tolist(), []
        failures = [RowFailure(row, _NO_CHOICE) for row in batch.rows_B[is_failed_B].tolist()]
        is_strange_B &= ~is_failed_B
        failures += [RowFailure(row, _STRANGE) for row in batch.rows_B[is_strange_B].tolist()]
        is_failed_B |= is_strange_B
        rows, token_ids = batch.rows_B[~is_failed_B], token_ids_B[~is_failed_B]
        self._requests.append(rows, token_ids)
        return rows.tolist(), token_ids.tolist(), failures

    def _collect_logprobs(self, sampled: SamplerOutput, batch: SamplingBatch) -> list[RowLogprobs]:
        if sampled.raw_logits is None:
            return []
        lines = sampled.logprob_lines
        rows = batch.rows_B[lines].tolist()
        params = [self._requests.params[row] for row in rows]
        return compute_row_logprobs(sampled.raw_logits, sampled.token_ids_B[lines], rows, params)
