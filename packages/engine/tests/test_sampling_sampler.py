"""The sampler against brute force: every step alone, neighbours, seeds, failures."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from engine.sampling.batch import SamplingBatch
from engine.sampling.sampler import Sampler
from engine.types.sampling_params import SamplingParams
from engine.types.schedule import NewRow
from hypothesis import given, settings
from hypothesis import strategies as st

VOCAB = 97
NUM_ROWS = 16
MAX_LEN = 64
CPU = torch.device("cpu")


class Table:
    """Rows of tokens beside a sampler, as a worker keeps them."""

    def __init__(self) -> None:
        self.sampler = Sampler(NUM_ROWS, VOCAB, CPU)
        self.token_ids_RL = np.zeros((NUM_ROWS, MAX_LEN), np.int32)
        self.num_tokens_R = np.zeros(NUM_ROWS, np.int64)
        self.num_prompt_R = np.zeros(NUM_ROWS, np.int64)

    def add(
        self,
        row: int,
        params: SamplingParams,
        prompt: list[int],
        output: list[int] | None = None,
        seed: int = 0,
        stop_token_ids: list[int] | None = None,
        bad_words: list[list[int]] | None = None,
    ) -> None:
        tokens = prompt + (output or [])
        self.token_ids_RL[row, : len(tokens)] = tokens
        self.num_tokens_R[row] = len(tokens)
        self.num_prompt_R[row] = len(prompt)
        new_row = NewRow(
            row=row,
            request_id=str(row),
            token_ids=tokens,
            num_prompt_tokens=len(prompt),
            num_computed_tokens=0,
            block_ids=[],
            params=params,
            seed=seed,
            stop_token_ids=stop_token_ids or [],
            bad_words_token_ids=bad_words or [],
        )
        self.sampler.add(new_row)

    def sample(self, rows: list[int], logits_BV: torch.Tensor) -> list[int]:
        output = self.sampler.sample(logits_BV.clone(), self.batch(rows))
        tokens = output.token_ids_B.tolist()
        for row, token in zip(rows, tokens, strict=True):
            self.token_ids_RL[row, self.num_tokens_R[row]] = token
            self.num_tokens_R[row] += 1
        return tokens

    def batch(self, rows: list[int]) -> SamplingBatch:
        rows_B = np.array(rows, np.int64)
        return SamplingBatch(
            rows_B=rows_B,
            num_tokens_B=self.num_tokens_R[rows_B],
            num_output_tokens_B=(self.num_tokens_R - self.num_prompt_R)[rows_B],
            token_ids_RL=self.token_ids_RL,
            device=CPU,
        )


def make_logits(num_lines: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(num_lines, VOCAB, generator=torch.Generator().manual_seed(seed)) * 3


GREEDY = {"temperature": 0.0, "max_tokens": 32}


def test_greedy_takes_the_most_likely_token() -> None:
    table, logits = Table(), make_logits(3)
    for row in range(3):
        table.add(row, SamplingParams(**GREEDY), [1])
    assert table.sample([0, 1, 2], logits) == logits.argmax(-1).tolist()


def test_only_allowed_tokens_are_chosen() -> None:
    table, logits = Table(), make_logits(1)
    order = logits[0].argsort(descending=True).tolist()
    table.add(0, SamplingParams(**GREEDY, allowed_token_ids=[order[5], order[9]]), [1])
    assert table.sample([0], logits) == [order[5]]


def test_logit_bias_moves_the_choice() -> None:
    table, logits = Table(), make_logits(1)
    order = logits[0].argsort(descending=True).tolist()
    table.add(0, SamplingParams(**GREEDY, logit_bias={order[-1]: 100.0}), [1])
    assert table.sample([0], logits) == [order[-1]]


def test_stop_ids_are_banned_until_the_minimum_of_tokens() -> None:
    table, logits = Table(), make_logits(1)
    order = logits[0].argsort(descending=True).tolist()
    table.add(0, SamplingParams(**GREEDY, min_tokens=2), [1], stop_token_ids=[order[0]])
    assert [table.sample([0], logits)[0] for _ in range(3)] == [order[1], order[1], order[0]]


def test_bad_word_of_several_tokens_is_banned_only_behind_its_beginning() -> None:
    table, logits = Table(), make_logits(1)
    first, second = logits[0].argsort(descending=True).tolist()[:2]
    table.add(0, SamplingParams(**GREEDY), [first], bad_words=[[first, first]])
    # The prompt's own token is no beginning; the first generated one is.
    assert [table.sample([0], logits)[0] for _ in range(3)] == [first, second, first]


@given(
    repetition=st.sampled_from([1.0, 0.7, 1.3]),
    presence=st.sampled_from([0.0, -1.5, 2.0]),
    frequency=st.sampled_from([0.0, 0.5, -0.5]),
    prompt=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=8),
    output=st.lists(st.integers(0, VOCAB - 1), max_size=8),
    num_steps=st.integers(1, 4),
)
@settings(max_examples=60, deadline=None)
def test_penalties_equal_their_definition(
    repetition: float, presence: float, frequency: float, prompt: list[int], output: list[int], num_steps: int
) -> None:
    table, logits = Table(), make_logits(1, seed=7)
    params = SamplingParams(
        **GREEDY, repetition_penalty=repetition, presence_penalty=presence, frequency_penalty=frequency
    )
    table.add(3, params, prompt, output)
    history = list(output)
    for _ in range(num_steps):
        expected = logits[0].tolist()
        for token in set(prompt) | set(history):
            value = expected[token]
            expected[token] = value / repetition if value > 0 else value * repetition
        for token in set(history):
            expected[token] -= presence + frequency * history.count(token)
        choice = int(torch.tensor(expected).argmax())
        assert table.sample([3], logits) == [choice]
        history.append(choice)


def test_penalty_counts_of_a_former_row_are_forgotten() -> None:
    table, logits = Table(), make_logits(1)
    params = SamplingParams(**GREEDY, presence_penalty=2.0, frequency_penalty=2.0)
    table.add(0, params, [1])
    first_run = [table.sample([0], logits)[0] for _ in range(8)]
    table.sampler.remove(0)
    table.add(0, params, [1])
    assert [table.sample([0], logits)[0] for _ in range(8)] == first_run


RANDOM_PARAMS = st.builds(
    lambda temperature, top_k, top_p, min_p, repetition: SamplingParams(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition,
        max_tokens=32,
    ),
    st.sampled_from([0.0, 0.5, 1.0, 2.0]),
    st.sampled_from([0, 1, 5, VOCAB + 10]),
    st.sampled_from([1.0, 0.9, 0.3]),
    st.sampled_from([0.0, 0.1]),
    st.sampled_from([1.0, 1.5]),
)


@given(
    params=st.lists(RANDOM_PARAMS, min_size=2, max_size=6),
    seeds=st.lists(st.integers(0, 2**63 - 1), min_size=6),
)
@settings(max_examples=40, deadline=None)
def test_a_row_samples_the_same_alone_and_among_neighbours(
    params: list[SamplingParams], seeds: list[int]
) -> None:
    together, logits = Table(), make_logits(len(params), seed=11)
    rows = list(range(len(params)))
    for row in rows:
        together.add(row, params[row], [row + 1, row + 2], seed=seeds[row])
    both = [together.sample(rows, logits) for _ in range(3)]
    for row in rows:
        alone = Table()
        # Another row number must not matter either.
        alone.add(NUM_ROWS - 1, params[row], [row + 1, row + 2], seed=seeds[row])
        lone = [alone.sample([NUM_ROWS - 1], logits[row : row + 1])[0] for _ in range(3)]
        assert lone == [step[row] for step in both]


def test_the_same_seed_repeats_and_another_differs() -> None:
    logits = torch.zeros(1, VOCAB)

    def run(seed: int) -> list[int]:
        table = Table()
        table.add(0, SamplingParams(max_tokens=32), [1], seed=seed)
        return [table.sample([0], logits)[0] for _ in range(12)]

    assert run(5) == run(5)
    assert run(5) != run(6)


def test_top_k_of_one_is_greedy_at_any_temperature() -> None:
    table, logits = Table(), make_logits(1)
    table.add(0, SamplingParams(temperature=2.0, top_k=1, max_tokens=32), [1], seed=3)
    assert {table.sample([0], logits)[0] for _ in range(10)} == {int(logits.argmax())}


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_row_with_non_finite_logits_fails_alone(bad: float) -> None:
    table, logits = Table(), make_logits(3)
    expected = logits.argmax(-1).tolist()
    logits[1, 4] = bad
    for row in range(3):
        table.add(row, SamplingParams(**GREEDY), [1])
    output = table.sampler.sample(logits, table.batch([0, 1, 2]))
    assert output.failed_B.tolist() == [False, True, False]
    assert [output.token_ids_B[line].item() for line in (0, 2)] == [expected[0], expected[2]]


def test_a_row_whose_every_token_is_forbidden_fails_alone() -> None:
    table, logits = Table(), make_logits(2)
    table.add(0, SamplingParams(**GREEDY, allowed_token_ids=[7]), [1], bad_words=[[7]])
    table.add(1, SamplingParams(**GREEDY), [1])
    output = table.sampler.sample(logits, table.batch([0, 1]))
    assert output.failed_B.tolist() == [True, False]
