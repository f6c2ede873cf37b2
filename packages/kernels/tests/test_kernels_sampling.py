"""Sampling ops: the CPU path against the reference and against brute force."""

from __future__ import annotations

from collections.abc import Callable

import kernels
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels.reference import sampling as reference
from kernels.reference.gumbel import compute_gumbel_noise

_INF = float("inf")
_seeds = st.integers(0, 2**32 - 1)


def _logits(rows: int, vocab_size: int, seed: int, *, has_ties: bool = False) -> torch.Tensor:
    logits = 3 * torch.randn(rows, vocab_size, generator=torch.Generator().manual_seed(seed))
    return logits.round() if has_ties else logits


def _sorted_filter(row: list[float], top_k: int, top_p: float) -> set[int]:
    """Return the kept ids, straight from the definition."""
    order = sorted(range(len(row)), key=lambda token: -row[token])
    k = len(row) if top_k <= 0 else min(top_k, len(row))
    kept = [token for token in order if sum(row[other] > row[token] for other in order) < k]
    weights = torch.softmax(torch.tensor([row[token] for token in kept], dtype=torch.float64), 0).tolist()
    result = set()
    for token in kept:
        above = sum(w for other, w in zip(kept, weights, strict=True) if row[other] > row[token])
        if above < top_p or token == kept[0] or top_p >= 1.0:
            result.add(token)
    return result


@settings(max_examples=150, deadline=None)
@given(
    seed=_seeds,
    vocab_size=st.integers(1, 70),
    top_k=st.integers(0, 80),
    top_p=st.floats(0.013, 1.0),
    has_ties=st.booleans(),
)
def test_top_k_top_p_keep_what_a_sort_keeps(
    seed: int, vocab_size: int, top_k: int, top_p: float, has_ties: bool
) -> None:
    row = _logits(1, vocab_size, seed, has_ties=has_ties)
    expected = _sorted_filter(row[0].tolist(), top_k, float(torch.tensor(top_p)))
    for apply in (kernels.apply_top_k_top_p, reference.apply_top_k_top_p):
        out = row.clone()
        apply(out, torch.tensor([top_k], dtype=torch.int32), torch.tensor([top_p]))
        assert set((out[0] > -_INF).nonzero().flatten().tolist()) == expected
        kept = sorted(expected)
        assert torch.equal(out[0, kept], row[0, kept])


@pytest.mark.parametrize("spread", [0.0, 0.01, 1.0, 20.0, 300.0])
def test_filters_of_a_large_vocabulary_agree_with_the_reference(spread: float) -> None:
    logits = spread * _logits(6, 50_000, 5)
    logits[3, 100:] = -_INF
    top_k = torch.tensor([1, 7, 1000, 50_000, 0, 50], dtype=torch.int32)
    top_p = torch.tensor([0.9, 1.0, 0.5, 0.99, 0.3, 0.95])
    for k, p in ((top_k, top_p), (top_k, None), (None, top_p)):
        actual, expected = logits.clone(), logits.clone()
        kernels.apply_top_k_top_p(actual, k, p)
        reference.apply_top_k_top_p(expected, k, p)
        # A token whose mass sum meets top_p to the last bit may fall on either side.
        assert int((actual != expected).sum()) <= 1
        assert not (actual == -_INF).all(dim=1).any()


def test_filters_that_are_off_change_nothing() -> None:
    logits = _logits(2, 100, 1)
    out = logits.clone()
    kernels.apply_top_k_top_p(out, torch.tensor([100, 0], dtype=torch.int32), torch.ones(2))
    kernels.apply_top_k_top_p(out, None, None)
    kernels.apply_min_p(out, torch.zeros(2))
    assert torch.equal(out, logits)


@pytest.mark.parametrize("value", [float("nan"), _INF, -_INF])
def test_filters_survive_a_row_that_is_not_finite(value: float) -> None:
    logits = torch.full((2, 1000), value)
    logits[1, ::2] = 1.0
    kernels.apply_top_k_top_p(logits, torch.tensor([3, 3], dtype=torch.int32), torch.tensor([0.5, 0.5]))
    kernels.apply_min_p(logits, torch.tensor([0.5, 0.5]))
    tokens = kernels.gumbel_sample(logits, torch.tensor([1, 2]), torch.tensor([0, 0]))
    _, _, top_ids, _ = kernels.gather_logprobs(logits, tokens, 1000)
    assert ((tokens >= 0) & (tokens < 1000)).all()
    assert torch.equal(top_ids.sort(dim=1).values, torch.arange(1000).expand(2, -1))


@settings(max_examples=50, deadline=None)
@given(seed=_seeds, vocab_size=st.integers(1, 100))
def test_min_p_agrees_with_the_reference(seed: int, vocab_size: int) -> None:
    logits = _logits(4, vocab_size, seed)
    min_p = torch.tensor([0.0, 0.05, 0.5, 1.0])
    actual, expected = logits.clone(), logits.clone()
    kernels.apply_min_p(actual, min_p)
    reference.apply_min_p(expected, min_p)
    assert torch.equal(actual, expected)
    probabilities = torch.softmax(logits, dim=1)
    is_likely = probabilities >= min_p[:, None] * probabilities.amax(1, keepdim=True) * (1 - 1e-5)
    assert ((actual > -_INF) <= is_likely).all()


@settings(max_examples=50, deadline=None)
@given(seed=_seeds, vocab_size=st.integers(1, 100), mask_dtype=st.sampled_from([torch.bool, torch.uint8]))
def test_penalties_agree_with_the_reference(seed: int, vocab_size: int, mask_dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = _logits(4, vocab_size, seed)
    mask = torch.randint(2, (4, vocab_size), generator=generator).to(mask_dtype)
    counts = torch.randint(4, (4, vocab_size), generator=generator, dtype=torch.int32)
    repetition, presence = torch.tensor([1.0, 1.3, 0.7, 2.0]), torch.tensor([0.0, 0.5, -1.0, 2.0])
    frequency = torch.tensor([0.0, 0.1, 2.0, -0.5])
    actual, expected = logits.clone(), logits.clone()
    kernels.apply_penalties(actual, mask, counts, repetition, presence, frequency)
    reference.apply_penalties(expected, mask, counts, repetition, presence, frequency)
    torch.testing.assert_close(actual, expected)


def test_penalties_by_hand() -> None:
    logits = torch.tensor([[2.0, -2.0, 2.0, 1.0]])
    mask, counts = torch.tensor([[True, True, False, False]]), torch.tensor([[0, 2, 3, 0]]).int()
    for apply in (kernels.apply_penalties, reference.apply_penalties):
        out = logits.clone()
        apply(out, mask, counts, torch.tensor([2.0]), torch.tensor([0.5]), torch.tensor([0.25]))
        # seen: 2 / 2; seen and generated twice: -2 * 2 - 0.5 - 2 * 0.25; generated 3 times: 1 - 0.5 - 0.75.
        assert out.tolist() == [[1.0, -5.0, -0.25, 1.0]]


def test_nonfinite_rows() -> None:
    logits = _logits(6, 41, 0)
    logits[1, 40] = float("nan")
    logits[2, 0] = _INF
    logits[3] = -_INF
    logits[4, 1:] = -_INF
    expected = [False, True, True, True, False, False]
    assert kernels.nonfinite_rows(logits).tolist() == expected
    assert reference.nonfinite_rows(logits).tolist() == expected


@settings(max_examples=60, deadline=None)
@given(seed=_seeds, vocab_size=st.integers(1, 90), data=st.data(), has_ties=st.booleans())
def test_logprobs_agree_with_the_reference(
    seed: int, vocab_size: int, data: st.DataObject, has_ties: bool
) -> None:
    logits = _logits(3, vocab_size, seed, has_ties=has_ties)
    tokens = torch.tensor(data.draw(st.lists(st.integers(0, vocab_size - 1), min_size=3, max_size=3)))
    num_top = data.draw(st.integers(0, vocab_size))
    actual = kernels.gather_logprobs(logits, tokens, num_top)
    expected = reference.gather_logprobs(logits, tokens, num_top)
    torch.testing.assert_close(actual[0], expected[0])
    assert torch.equal(actual[1], expected[1])
    assert torch.equal(actual[2], expected[2])
    torch.testing.assert_close(actual[3], expected[3])
    torch.testing.assert_close(actual[0], torch.log_softmax(logits, 1).gather(1, tokens[:, None])[:, 0])


def test_logprobs_of_a_large_vocabulary_with_forbidden_tokens() -> None:
    logits = _logits(3, 60_000, 2)
    logits[1, 10:] = -_INF
    tokens = logits.argmax(dim=1)
    logprob, rank, top_ids, top_logprobs = kernels.gather_logprobs(logits, tokens, 20)
    expected = reference.gather_logprobs(logits, tokens, 20)
    assert rank.tolist() == [1, 1, 1]
    assert torch.equal(top_ids, expected[2])
    assert torch.equal(top_ids[:, 0], tokens)
    torch.testing.assert_close(top_logprobs, expected[3])
    torch.testing.assert_close(logprob, expected[0])


@settings(max_examples=30, deadline=None)
@given(
    seed=_seeds,
    row_seed=st.integers(-(2**63), 2**63 - 1),
    position=st.integers(0, 2**40),
    vocab_size=st.integers(1, 3000),
)
def test_the_random_choice_is_the_reference_choice(
    seed: int, row_seed: int, position: int, vocab_size: int
) -> None:
    logits = _logits(2, vocab_size, seed)
    seeds, positions = torch.tensor([row_seed, seed]), torch.tensor([position, 3])
    actual = kernels.gumbel_sample(logits, seeds, positions)
    assert torch.equal(actual, reference.gumbel_sample(logits, seeds, positions))


def test_the_noise_has_the_same_bits_as_the_reference() -> None:
    """Every token in turn competes with one whose score is the reference's noise, to the bit."""
    vocab_size = 20_000
    seeds, positions = torch.tensor([7]), torch.tensor([11])
    noise = compute_gumbel_noise(seeds, positions, vocab_size)[0]
    # logit = -noise makes every score 0 exactly if the bits agree: then the lowest id wins the tie of all.
    assert kernels.gumbel_sample(-noise[None], seeds, positions).tolist() == [0]
    for token in (1, 19, 8191, 8192, 19_999):
        logits = -noise[None].clone()
        logits[0, :token] = -_INF
        assert kernels.gumbel_sample(logits, seeds, positions).tolist() == [token]


def test_a_rows_choice_does_not_depend_on_its_batch() -> None:
    logits = _logits(9, 5000, 4)
    seeds, positions = torch.arange(9), torch.arange(100, 109)
    together = kernels.gumbel_sample(logits, seeds, positions)
    for row in range(9):
        alone = kernels.gumbel_sample(logits[row : row + 1], seeds[row : row + 1], positions[row : row + 1])
        assert alone.tolist() == together[row : row + 1].tolist()
    assert torch.equal(kernels.gumbel_sample(logits, seeds, positions), together)
    assert kernels.gumbel_sample(logits, seeds, positions + 1).tolist() != together.tolist()
    assert kernels.gumbel_sample(logits, seeds + 1, positions).tolist() != together.tolist()


@pytest.mark.parametrize("vary", ["seeds", "positions"])
def test_choices_follow_the_distribution(vary: str) -> None:
    """Chi-square over 40,000 draws, consecutive seeds or consecutive positions; 19 degrees of freedom."""
    num_draws = 40_000
    logits = torch.linspace(-4, 1, 20)
    counter, fixed = torch.arange(num_draws), torch.full((num_draws,), 5)
    seeds, positions = (counter, fixed) if vary == "seeds" else (fixed, counter)
    tokens = kernels.gumbel_sample(logits.repeat(num_draws, 1), seeds, positions)
    observed = torch.bincount(tokens, minlength=20).double()
    expected = torch.softmax(logits.double(), 0) * num_draws
    statistic = float(((observed - expected) ** 2 / expected).sum())
    assert statistic < 43.8  # the 0.999 quantile; seeds are fixed, so this cannot flake


def test_rare_tokens_are_drawn_as_often_as_they_should_be() -> None:
    """3,000 tokens of probability 2e-7 each, which coarse noise would never or always draw."""
    num_draws, num_rare = 30_000, 3000
    logits = torch.zeros(1, 1 + num_rare)
    logits[0, 1:] = -15.4
    share = num_rare * 2.0537e-7 / (1 + num_rare * 2.0537e-7)
    tokens = kernels.gumbel_sample(
        logits.expand(num_draws, -1).contiguous(), torch.arange(num_draws), torch.zeros(num_draws).long()
    )
    num_rare_drawn = int((tokens > 0).sum())
    mean = num_draws * share
    assert abs(num_rare_drawn - mean) < 4.5 * mean**0.5


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: kernels.gumbel_sample(torch.zeros(2, 3), torch.zeros(1).long(), torch.zeros(2).long()),
            "seeds",
        ),
        (lambda: kernels.gumbel_sample(torch.zeros(2, 3).half(), torch.ones(2), torch.ones(2)), "logits"),
        (lambda: kernels.gather_logprobs(torch.zeros(1, 3), torch.tensor([3]), 0), "token_ids"),
        (lambda: kernels.gather_logprobs(torch.zeros(1, 3), torch.tensor([-1]), 0), "token_ids"),
        (lambda: kernels.gather_logprobs(torch.zeros(1, 3), torch.tensor([0]), 4), "num_top"),
        (lambda: kernels.apply_top_k_top_p(torch.zeros(1, 3), torch.tensor([1, 2]), None), "top_k"),
        (lambda: kernels.apply_min_p(torch.zeros(1, 3), torch.ones(2)), "min_p"),
        (
            lambda: kernels.apply_penalties(
                torch.zeros(1, 3), torch.zeros(1, 2), torch.zeros(1, 3), *torch.ones(3, 1)
            ),
            "prompt_token_mask",
        ),
    ],
)
def test_what_does_not_fit_is_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
