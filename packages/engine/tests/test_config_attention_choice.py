"""The choice of an attention backend by what it declares."""

from __future__ import annotations

import dataclasses

import pytest
from engine.config.attention_choice import AttentionNeeds, AttentionOption, choose_attention, find_refusal
from engine.types.attention import AttentionCapabilities
from engine.types.errors import ConfigError

PLAIN = AttentionCapabilities(platforms=["cpu", "cuda"], dtypes=["float32", "bfloat16"])
NEEDS = AttentionNeeds(platform="cpu", dtype="float32", head_size=64, block_size=16)


def option(name: str, **changes: object) -> AttentionOption:
    return AttentionOption(
        name=name,
        target=f"engine.{name}.X",
        capabilities=dataclasses.replace(PLAIN, **changes),  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    ("capabilities", "needs", "phrase"),
    [
        ({"platforms": ["cuda"]}, {}, "runs on cuda, not cpu"),
        ({}, {"dtype": "float16"}, "computes in float32 or bfloat16, not float16"),
        ({"head_sizes": [128]}, {}, "has head sizes 128, not 64"),
        ({}, {"head_size": 60}, "needs a head size that is a multiple of 8, not 60"),
        ({"block_sizes": [32, 64]}, {}, "has block sizes 32 or 64, not 16"),
        ({}, {"sliding_window": True}, "lacks sliding_window"),
        ({}, {"soft_cap": True}, "lacks soft_cap"),
        ({}, {"sinks": True}, "lacks sinks"),
        ({}, {"encoder_only": True}, "lacks encoder_only"),
    ],
)
def test_each_unmet_need_is_named(
    capabilities: dict[str, object], needs: dict[str, object], phrase: str
) -> None:
    declared = dataclasses.replace(PLAIN, **capabilities)  # type: ignore[arg-type]
    assert find_refusal(declared, dataclasses.replace(NEEDS, **needs)) == phrase  # type: ignore[arg-type]


def test_what_fits_is_not_refused() -> None:
    assert find_refusal(PLAIN, NEEDS) is None
    assert find_refusal(PLAIN, dataclasses.replace(NEEDS, block_size=None)) is None


def test_highest_priority_among_the_fitting_wins() -> None:
    options = [option("slow"), option("quick", priority=9), option("gpu", priority=99, platforms=["cuda"])]
    choice = choose_attention(options, NEEDS)
    assert choice.option.name == "quick"
    assert choice.refused == {"gpu": "runs on cuda, not cpu"}


def test_equal_priorities_are_decided_by_name() -> None:
    assert choose_attention([option("b"), option("a")], NEEDS).option.name == "a"


def test_no_fitting_backend_is_an_error_that_lists_all() -> None:
    options = [option("a", platforms=["cuda"]), option("b", dtypes=["float16"])]
    with pytest.raises(
        ConfigError, match="a runs on cuda, not cpu; b computes in float16, not float32"
    ) as error:
        choose_attention(options, NEEDS)
    assert error.value.key == "attention"
