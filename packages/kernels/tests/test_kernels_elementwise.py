"""Norms, gated activations, rotary embedding and cache writes: the CPU path against the reference."""

from __future__ import annotations

import kernels
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels.reference import activation, kv_cache, norm, rotary

_DTYPES = [torch.float32, torch.bfloat16, torch.float16]
_TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 2e-3}

_dtypes = st.sampled_from(_DTYPES)
_widths = st.integers(1, 130)
_rows = st.integers(0, 9)


def _random(*shape: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def _assert_close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    assert actual.dtype is expected.dtype
    tolerance = _TOLERANCES[expected.dtype]
    torch.testing.assert_close(actual, expected, atol=tolerance, rtol=tolerance)


@settings(max_examples=60, deadline=None)
@given(rows=_rows, width=_widths, dtype=_dtypes, is_strided=st.booleans())
def test_rms_norm_agrees_with_the_reference(
    rows: int, width: int, dtype: torch.dtype, is_strided: bool
) -> None:
    x = _random(rows, width + 7, dtype=dtype)[:, 3 : 3 + width]
    x = x if is_strided else x.contiguous()
    weight = _random(width, dtype=dtype, seed=1)
    _assert_close(kernels.rms_norm(x, weight, 1e-5), norm.rms_norm(x, weight, 1e-5))


@pytest.mark.parametrize("dtype", _DTYPES)
def test_rms_norm_takes_the_heads_of_a_qkv_slice(dtype: torch.dtype) -> None:
    heads = _random(5, 200, dtype=dtype)[:, 8:136].unflatten(1, (4, 32))
    weight = _random(32, dtype=dtype, seed=1)
    out = kernels.rms_norm(heads, weight, 1e-6)
    assert out.is_contiguous()
    _assert_close(out, norm.rms_norm(heads, weight, 1e-6))


@settings(max_examples=60, deadline=None)
@given(rows=_rows, width=_widths, dtype=_dtypes)
def test_fused_add_rms_norm_agrees_with_the_reference(rows: int, width: int, dtype: torch.dtype) -> None:
    x, residual = _random(rows, width, dtype=dtype), _random(rows, width + 4, dtype=dtype, seed=1)[:, :width]
    weight = _random(width, dtype=dtype, seed=2)
    before = x.clone(), residual.clone()
    out, new_residual = kernels.fused_add_rms_norm(x, residual, weight, 1e-5)
    expected, expected_residual = norm.fused_add_rms_norm(x, residual, weight, 1e-5)
    assert torch.equal(new_residual, expected_residual)
    _assert_close(out, expected)
    assert torch.equal(x, before[0])
    assert torch.equal(residual, before[1])


@settings(max_examples=60, deadline=None)
@given(rows=_rows, width=_widths, dtype=_dtypes)
def test_gated_activations_agree_with_the_reference(rows: int, width: int, dtype: torch.dtype) -> None:
    x = 4 * _random(rows, 2 * width, dtype=dtype)
    _assert_close(kernels.silu_and_mul(x), activation.silu_and_mul(x))
    for approximate in ("none", "tanh"):
        _assert_close(kernels.gelu_and_mul(x, approximate), activation.gelu_and_mul(x, approximate))


def test_large_calls_shared_by_threads_agree_with_the_reference() -> None:
    x, weight = _random(300, 576, dtype=torch.float32), _random(576, dtype=torch.float32, seed=1)
    _assert_close(kernels.rms_norm(x, weight, 1e-5), norm.rms_norm(x, weight, 1e-5))
    _assert_close(kernels.silu_and_mul(x), activation.silu_and_mul(x))
    out, _ = kernels.fused_add_rms_norm(x, x, weight, 1e-5)
    _assert_close(out, norm.fused_add_rms_norm(x, x, weight, 1e-5)[0])


def test_silu_of_extreme_gates_is_finite() -> None:
    gate = torch.tensor([[-1e4, -100.0, -90.0, 0.0, 90.0, 1e4]])
    out = kernels.silu_and_mul(torch.cat([gate, torch.ones_like(gate)], dim=1))
    torch.testing.assert_close(out, torch.nn.functional.silu(gate))


@settings(max_examples=60, deadline=None)
@given(
    num_tokens=_rows,
    num_heads=st.integers(1, 5),
    num_kv_heads=st.integers(1, 3),
    half=st.integers(1, 40),
    extra=st.sampled_from([0, 0, 3, 16]),
    dtype=_dtypes,
    cache_dtype=_dtypes,
    is_neox=st.booleans(),
)
def test_rotary_embedding_agrees_with_the_reference(
    num_tokens: int,
    num_heads: int,
    num_kv_heads: int,
    half: int,
    extra: int,
    dtype: torch.dtype,
    cache_dtype: torch.dtype,
    is_neox: bool,
) -> None:
    head_size = 2 * half + extra
    query_size, key_size = num_heads * head_size, num_kv_heads * head_size
    qkv = _random(num_tokens, query_size + 2 * key_size, dtype=dtype)
    angles = torch.arange(50)[:, None] * torch.linspace(1, 0.01, half)
    cache = torch.cat([angles.cos(), angles.sin()], dim=1).to(cache_dtype)
    positions = torch.randint(50, (num_tokens,), generator=torch.Generator().manual_seed(3))
    expected = qkv.clone()
    for rotate, tensor in ((kernels.rotary_embedding, qkv), (rotary.rotary_embedding, expected)):
        query, key, _ = tensor.split([query_size, key_size, key_size], dim=1)
        rotate(positions, query, key, cache, head_size, is_neox)
    # The values beside query and key are untouched.
    assert torch.equal(qkv[:, query_size + key_size :], expected[:, query_size + key_size :])
    _assert_close(qkv, expected)


@pytest.mark.parametrize("position", [-1, 8, 1 << 40])
@pytest.mark.parametrize("rotate", [kernels.rotary_embedding, rotary.rotary_embedding])
def test_a_position_outside_the_cache_is_refused(rotate: object, position: int) -> None:
    query = torch.ones(2, 8)
    with pytest.raises(ValueError, match="positions"):
        rotate(torch.tensor([0, position]), query, query.clone(), torch.zeros(8, 8), 8, True)  # type: ignore[operator]
    assert (query == 1).all()


@settings(max_examples=60, deadline=None)
@given(data=st.data(), block_size=st.integers(1, 20), num_heads=st.integers(1, 4), dtype=_dtypes)
def test_write_kv_cache_agrees_with_the_reference(
    data: st.DataObject, block_size: int, num_heads: int, dtype: torch.dtype
) -> None:
    num_slots, head_size = 5 * block_size, 24
    slots = data.draw(st.lists(st.integers(0, num_slots - 1), unique=True, max_size=30))
    slots = [slot if data.draw(st.booleans()) else -1 for slot in slots]
    size = num_heads * head_size
    qkv = _random(len(slots), 3 * size, dtype=dtype)
    _, key, value = (part.unflatten(1, (num_heads, head_size)) for part in qkv.split(size, dim=1))
    caches = torch.zeros(2, 5, num_heads, block_size, head_size, dtype=dtype)
    expected = caches.clone()
    mapping = torch.tensor(slots, dtype=torch.int64)
    kernels.write_kv_cache(key, value, caches[0], caches[1], mapping)
    kv_cache.write_kv_cache(key, value, expected[0], expected[1], mapping)
    assert torch.equal(caches, expected)
    for token, slot in enumerate(slots):
        if slot >= 0:
            assert torch.equal(caches[0, slot // block_size, :, slot % block_size], key[token])


@pytest.mark.parametrize("write", [kernels.write_kv_cache, kv_cache.write_kv_cache])
@pytest.mark.parametrize("slot", [48, 1 << 40])
def test_a_slot_past_the_cache_is_refused_before_anything_is_written(write: object, slot: int) -> None:
    key = torch.ones(2, 2, 8)
    cache = torch.zeros(2, 3, 2, 16, 8)
    with pytest.raises(ValueError, match="slot_mapping"):
        write(key, key, cache[0], cache[1], torch.tensor([0, slot]))  # type: ignore[operator]
    assert (cache == 0).all()


def test_shapes_that_do_not_fit_are_refused() -> None:
    x, weight = torch.ones(3, 8), torch.ones(8)
    with pytest.raises(ValueError, match="weight"):
        kernels.rms_norm(x, torch.ones(7), 1e-5)
    with pytest.raises(ValueError, match="weight"):
        kernels.rms_norm(x, weight.bfloat16(), 1e-5)
    with pytest.raises(ValueError, match="residual"):
        kernels.fused_add_rms_norm(x, torch.ones(2, 8), weight, 1e-5)
    with pytest.raises(ValueError, match="x: the last dimension"):
        kernels.silu_and_mul(torch.ones(3, 7))
    with pytest.raises(ValueError, match="approximate"):
        kernels.gelu_and_mul(x, "sigmoid")
    with pytest.raises(ValueError, match="query"):
        kernels.rotary_embedding(torch.zeros(3).long(), torch.ones(3, 9), x, torch.ones(4, 8), 8, True)
    with pytest.raises(ValueError, match="key"):
        kernels.write_kv_cache(
            torch.ones(3, 2, 8), torch.ones(3, 2, 8), *torch.zeros(2, 2, 1, 4, 8), torch.zeros(3).long()
        )
