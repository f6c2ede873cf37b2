"""A checkpoint's own sampling defaults."""

from __future__ import annotations

import logging

import pytest
from engine.frontend.sampling_defaults import build_default_fields, get_max_new_tokens
from frontend_fakes import make_config

GENERATION_CONFIG: dict[str, object] = {
    "temperature": 0.6,
    "top_p": 0.95,
    "top_k": 20,
    "repetition_penalty": None,
    "max_new_tokens": 2048,
    "do_sample": True,
    "eos_token_id": [1, 2],
}


def test_known_fields_are_taken_and_the_rest_is_not() -> None:
    config = make_config(generation_config=GENERATION_CONFIG)
    assert build_default_fields(config) == {"temperature": 0.6, "top_p": 0.95, "top_k": 20}
    assert get_max_new_tokens(config) == 2048


def test_none_leaves_the_api_its_own_defaults() -> None:
    config = make_config(generation_config=GENERATION_CONFIG, use_generation_config="none")
    assert build_default_fields(config) == {}
    assert get_max_new_tokens(config) is None


def test_a_value_that_no_request_could_have_is_left_out_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    config = make_config(generation_config={"temperature": 9.0, "top_p": 0.5, "max_new_tokens": -1})
    with caplog.at_level(logging.WARNING):
        assert build_default_fields(config) == {"top_p": 0.5}
    assert "temperature" in caplog.text
    assert get_max_new_tokens(config) is None
