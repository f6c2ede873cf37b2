"""The door for requests: what comes in right, and what is refused with the name of what is wrong."""

from __future__ import annotations

from typing import Any

import pytest
from engine.frontend.input_processor import InputProcessor, ProcessedInput, Prompt
from engine.types.errors import InvalidRequestError
from engine.types.sampling_params import INT64_MAX, INT64_MIN, SamplingParams
from frontend_fakes import BOS, EOS, MAX_MODEL_LEN, ByteTokenizer, make_config, make_info, make_inputs


def process(
    prompt: Any, params: SamplingParams | None = None, inputs: InputProcessor | None = None, **options: Any
) -> ProcessedInput:
    inputs = inputs or make_inputs()
    return inputs.process(prompt, params or SamplingParams(), internal_id="7", arrival_time_s=1.0, **options)


def refused(
    prompt: Any, params: SamplingParams | None = None, inputs: InputProcessor | None = None, **options: Any
) -> InvalidRequestError:
    with pytest.raises(InvalidRequestError) as caught:
        process(prompt, params, inputs, **options)
    return caught.value


@pytest.mark.parametrize(
    ("prompt", "text"),
    [("Hi", "Hi"), ({"prompt": "Hi"}, "Hi"), ([72, 105], None), ({"prompt_token_ids": [72, 105]}, None)],
)
def test_every_form_of_a_prompt_gives_the_same_tokens(prompt: Prompt, text: str | None) -> None:
    result = process(prompt)
    assert result.prompt == text
    assert result.prompt_token_ids == [72, 105]
    [request] = result.requests
    assert request.prompt_token_ids == [72, 105]
    assert (request.request_id, request.arrival_time_s, request.eos_token_ids) == ("7", 1.0, [EOS])


@pytest.mark.parametrize(
    "prompt",
    [
        "",
        [],
        None,
        3,
        b"bytes",
        {},
        {"prompt": "a", "prompt_token_ids": [1]},
        {"text": "a"},
        {"prompt": [1, 2]},
        {"prompt_token_ids": "ab"},
        [1, "a"],
        [1, 2.0],
        [True, 1],
        [[1]],
    ],
)
def test_a_malformed_or_empty_prompt_is_refused_by_name(prompt: object) -> None:
    assert refused(prompt).param == "prompt"


@pytest.mark.parametrize("token_id", [300, -1, 99_999_999, 2**70])
def test_a_token_id_out_of_vocabulary_is_named(token_id: int) -> None:
    error = refused([5, token_id])
    assert error.param == "prompt"
    assert f"{token_id}" in str(error)
    assert "out of vocabulary" in str(error)


@pytest.mark.parametrize("name", ["stop_token_ids", "allowed_token_ids", "logprob_token_ids", "logit_bias"])
def test_token_ids_in_parameters_are_held_against_the_vocabulary(name: str) -> None:
    bad: object = {300: 1.0} if name == "logit_bias" else [3, 300]
    good: object = {299: 1.0} if name == "logit_bias" else [3, 299]
    assert refused("a", SamplingParams(**{name: bad})).param == name
    process("a", SamplingParams(**{name: good}))


@pytest.mark.parametrize("text", ["\ud83d", "ok \udc00 then", "\udfff\ud800"])
def test_lone_surrogates_are_refused_before_tokenizing(text: str) -> None:
    tokenizer = ByteTokenizer()
    inputs = InputProcessor(make_config(), make_info(), tokenizer)  # type: ignore[arg-type]
    error = refused(text, inputs=inputs)
    assert error.param == "prompt"
    assert "surrogate" in str(error)
    assert tokenizer.num_encoded == 0
    assert refused("a", SamplingParams(stop=[text]), inputs).param == "stop"
    assert refused("a", SamplingParams(bad_words=[text]), inputs).param == "bad_words"
    assert refused("a", inputs=inputs, cache_salt=text).param == "cache_salt"


def test_nul_and_odd_but_valid_text_passes() -> None:
    assert process("a\x00b\ufffe").prompt_token_ids == list("a\x00b\ufffe".encode())


def test_text_too_long_for_any_tokenizing_is_refused_before_it() -> None:
    tokenizer = ByteTokenizer([b" " * 40])
    inputs = InputProcessor(make_config(), make_info(), tokenizer)  # type: ignore[arg-type]
    error = refused("x" * (MAX_MODEL_LEN * 40 + 1), inputs=inputs)
    assert (error.param, error.code) == ("prompt", "context_length_exceeded")
    assert str(MAX_MODEL_LEN) in str(error)
    assert str(MAX_MODEL_LEN * 40 + 1) in str(error)
    assert tokenizer.num_encoded == 0
    # The longest token is 40 bytes, so one character less might have fitted.
    refused("x" * (MAX_MODEL_LEN * 40), inputs=inputs)
    assert tokenizer.num_encoded == 1


@pytest.mark.parametrize("prompt", ["x" * MAX_MODEL_LEN, [7] * MAX_MODEL_LEN, [7] * 10**6])
def test_a_prompt_over_the_context_is_refused_with_both_lengths(prompt: Prompt) -> None:
    error = refused(prompt, SamplingParams(max_tokens=None))
    assert (error.param, error.code) == ("prompt", "context_length_exceeded")
    assert f"{MAX_MODEL_LEN} tokens" in str(error)
    assert f"{len(prompt)} tokens" in str(error)


def test_max_tokens_left_open_is_what_fits() -> None:
    result = process([7] * 100, SamplingParams(max_tokens=None))
    assert result.params.max_tokens == result.requests[0].params.max_tokens == MAX_MODEL_LEN - 100
    inputs = make_inputs(make_config(generation_config={"max_new_tokens": 20}))
    assert process([7] * 100, SamplingParams(max_tokens=None), inputs).params.max_tokens == 20
    assert process([7] * 250, SamplingParams(max_tokens=None), inputs).params.max_tokens == 6
    wanted = SamplingParams(max_tokens=None, min_tokens=50)
    assert process([7] * 100, wanted, inputs).params.max_tokens == 50


def test_max_tokens_that_does_not_fit_is_refused_or_lowered_as_asked() -> None:
    params = SamplingParams(max_tokens=10_000_000)
    error = refused([7] * 100, params)
    assert (error.param, error.code) == ("max_tokens", "context_length_exceeded")
    assert "10000000" in str(error)
    assert str(MAX_MODEL_LEN) in str(error)
    assert process([7] * 100, params, fit_max_tokens=True).params.max_tokens == MAX_MODEL_LEN - 100
    process([7] * 100, SamplingParams(max_tokens=MAX_MODEL_LEN - 100))


def test_min_tokens_that_cannot_be_reached_is_refused() -> None:
    assert refused([7] * 200, SamplingParams(max_tokens=None, min_tokens=57)).param == "min_tokens"
    assert refused("a", SamplingParams(max_tokens=None, min_tokens=10**6)).param == "min_tokens"


def test_truncation_keeps_the_last_tokens() -> None:
    ids = list(range(10, 15))
    assert process(ids, SamplingParams(truncate_prompt_tokens=3)).prompt_token_ids == [12, 13, 14]
    assert process(ids, SamplingParams(truncate_prompt_tokens=9)).prompt_token_ids == ids
    long = [5] * 3000 + [6]
    result = process(long, SamplingParams(truncate_prompt_tokens=-1, max_tokens=None))
    assert result.prompt_token_ids == [*[5] * (MAX_MODEL_LEN - 2), 6]
    assert result.params.max_tokens == 1
    error = refused(ids, SamplingParams(truncate_prompt_tokens=MAX_MODEL_LEN + 1))
    assert error.param == "truncate_prompt_tokens"


@pytest.mark.parametrize("name", ["logprobs", "prompt_logprobs"])
def test_the_limit_on_logprobs_is_named(name: str) -> None:
    for value in (21, -1):
        error = refused("a", SamplingParams(**{name: value}))
        assert error.param == name
        assert "20" in str(error)
    # The last was -1, which would read as less than 20.
    assert "whole vocabulary" in str(error)
    process("a", SamplingParams(**{name: 20}))
    process("a", SamplingParams(**{name: -1}), make_inputs(make_config(max_logprobs=-1)))


def test_n_completions_are_n_sequences_with_seeds_counted_up() -> None:
    result = process("a", SamplingParams(n=3, seed=INT64_MAX - 1, prompt_logprobs=1))
    assert [r.request_id for r in result.requests] == ["7-0", "7-1", "7-2"]
    assert [r.params.seed for r in result.requests] == [INT64_MAX - 1, INT64_MAX, INT64_MIN]
    assert [r.params.n for r in result.requests] == [1, 1, 1]
    assert [r.params.prompt_logprobs for r in result.requests] == [1, None, None]
    assert result.params.n == 3
    unseeded = process("a", SamplingParams(n=2))
    assert [r.params.seed for r in unseeded.requests] == [None, None]


def test_bad_words_become_tokens_as_a_text_may_begin_and_go_on() -> None:
    [request] = process("a", SamplingParams(bad_words=["ab", " ab", " "])).requests
    assert request.bad_words_token_ids == [[97, 98], [32, 97, 98], [32]]
    many = [letter * 1024 for letter in "uvwxy"]
    assert refused("a", SamplingParams(bad_words=many)).param == "bad_words"


def test_end_of_sequence_ids_go_along_unless_ignored() -> None:
    assert process("a").requests[0].eos_token_ids == [EOS]
    assert process("a", SamplingParams(ignore_eos=True)).requests[0].eos_token_ids == []


def test_special_tokens_are_added_where_asked_for() -> None:
    inputs = InputProcessor(make_config(), make_info(), ByteTokenizer(adds_bos=True))  # type: ignore[arg-type]
    assert process("a", inputs=inputs).prompt_token_ids == [BOS, 97]
    assert process("a", inputs=inputs, add_special_tokens=False).prompt_token_ids == [97]


def test_priority_needs_its_policy_and_64_bits() -> None:
    assert refused("a", priority=5).param == "priority"
    assert refused("a", priority=2**70).param == "priority"
    assert process("a", priority=0).requests[0].priority == 0
    inputs = make_inputs(make_config(policy="priority"))
    assert process("a", inputs=inputs, priority=-5).requests[0].priority == -5
    assert refused("a", inputs=inputs, priority=2**70).param == "priority"


@pytest.mark.parametrize("salt", ["", "x" * 513])
def test_a_cache_salt_has_a_length(salt: str) -> None:
    assert refused("a", cache_salt=salt).param == "cache_salt"
    assert process("a", cache_salt="tenant").requests[0].cache_salt == "tenant"


def test_without_a_tokenizer_ids_go_and_text_does_not() -> None:
    inputs = InputProcessor(make_config(), make_info(), None)
    assert process([1, 2], SamplingParams(detokenize=False), inputs).prompt_token_ids == [1, 2]
    assert refused("a", inputs=inputs).param == "prompt"
    assert refused([1], SamplingParams(stop=["x"]), inputs).param == "stop"
    assert refused([1], SamplingParams(bad_words=["x"]), inputs).param == "bad_words"
