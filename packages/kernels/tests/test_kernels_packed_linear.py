"""Packed linears: the same numbers as the plain ones, for any number of rows."""

from __future__ import annotations

import kernels
import pytest
import torch


def _random(*shape: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize(("num_outputs", "num_inputs"), [(1, 1), (96, 64), (130, 77), (33, 256)])
@pytest.mark.parametrize("has_bias", [False, True])
def test_packed_agrees_with_plain(
    dtype: torch.dtype, num_outputs: int, num_inputs: int, has_bias: bool
) -> None:
    weight = _random(num_outputs, num_inputs, dtype=dtype, seed=0)
    bias = _random(num_outputs, dtype=dtype, seed=1) if has_bias else None
    packed = kernels.pack_linear(weight)
    if packed is None:
        pytest.skip(f"no packed {dtype} on this processor")
    assert (packed.in_features, packed.out_features) == (num_inputs, num_outputs)
    for num_rows in (0, 1, 2, 7, 40):
        x = _random(num_rows, num_inputs + 3, dtype=dtype, seed=2)[:, :num_inputs]
        out = kernels.linear(x, packed, bias)
        exact = x.double() @ weight.double().T + (0 if bias is None else bias.double())
        assert out.shape == (num_rows, num_outputs)
        assert out.dtype is dtype
        tolerance = 1e-4 if dtype is torch.float32 else 0.01 * num_inputs**0.5
        torch.testing.assert_close(out.double(), exact, atol=tolerance, rtol=0.01)


def test_a_row_does_not_depend_on_the_number_of_rows() -> None:
    packed = kernels.pack_linear(_random(96, 64, dtype=torch.float32, seed=0))
    assert packed is not None
    x = _random(33, 64, dtype=torch.float32, seed=1)
    together = kernels.linear(x, packed)
    for num_rows in (1, 2, 8, 32):
        torch.testing.assert_close(
            kernels.linear(x[:num_rows], packed), together[:num_rows], atol=1e-6, rtol=0
        )


def test_plain_weights_are_taken_too() -> None:
    x, weight, bias = torch.randn(3, 8), torch.randn(5, 8), torch.randn(5)
    torch.testing.assert_close(kernels.linear(x, weight, bias), x @ weight.T + bias)


def test_types_without_a_packed_form_are_left_alone() -> None:
    assert kernels.pack_linear(torch.ones(4, 4, dtype=torch.float64)) is None
    with pytest.raises(ValueError, match="weight"):
        kernels.pack_linear(torch.ones(4))
