"""Sampling parameters of the wrong type: refused by name, whatever they are."""

from __future__ import annotations

from typing import Any

import pytest
from engine.types.errors import InvalidRequestError
from engine.types.sampling_params import SamplingParams


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("stop", "ab"),
        ("stop", 5),
        ("stop", None),
        ("bad_words", "ab"),
        ("stop_token_ids", 5),
        ("allowed_token_ids", 5),
        ("logprob_token_ids", "1"),
        ("logit_bias", [1]),
        ("temperature", 10**400),
        ("ignore_eos", 5),
        ("detokenize", None),
        ("skip_special_tokens", "no"),
    ],
)
def test_a_wrong_type_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(InvalidRequestError, match=f"^{name} must ") as error:
        SamplingParams(**{name: value})
    assert error.value.param == name
