"""How ops reach torch: a cheap import, sound schemas and fakes, one reference for every device."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import kernels
import pytest
import torch
from kernels import dispatch


def test_importing_the_package_loads_no_torch() -> None:
    code = "import sys, kernels; assert 'torch' not in sys.modules; assert 'rms_norm' in dir(kernels)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_transformers_does_not_take_this_package_for_another_of_its_name() -> None:
    code = "import kernels; from transformers.utils import is_kernels_available as probe; assert not probe()"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_op"):
        kernels.no_such_op  # noqa: B018
    for name in kernels.__all__:
        assert getattr(kernels, name) is not None


def test_a_device_without_a_fast_path_says_so() -> None:
    assert not kernels.prepare_device(torch.device("meta"))
    has_kernel = kernels.prepare_device(torch.device("cpu"))
    assert torch._C._dispatch_has_kernel_for_dispatch_key("pagoda::rms_norm", "CPU") is has_kernel


def _attention_arguments() -> tuple[object, ...]:
    cache = torch.randn(2, 4, 2, 4, 8)
    starts, lens = torch.tensor([0, 1, 4]).int(), torch.tensor([6, 3]).int()
    table = torch.tensor([[0, 1], [2, 3]]).int()
    return torch.randn(4, 4, 8), cache[0], cache[1], table, starts, lens, 0.3


_CALLS: dict[str, Callable[[], tuple[object, ...]]] = {
    "rms_norm": lambda: (torch.randn(3, 8), torch.ones(8), 1e-5),
    "fused_add_rms_norm": lambda: (torch.randn(3, 8), torch.randn(3, 8), torch.ones(8), 1e-5),
    "silu_and_mul": lambda: (torch.randn(3, 8),),
    "gelu_and_mul": lambda: (torch.randn(3, 8), "tanh"),
    "rotary_embedding": lambda: (
        torch.arange(3),
        torch.randn(3, 16),
        torch.randn(3, 8),
        torch.randn(5, 8),
        8,
        True,
    ),
    "write_kv_cache": lambda: (
        torch.randn(3, 2, 8),
        torch.randn(3, 2, 8),
        torch.zeros(4, 2, 4, 8),
        torch.zeros(4, 2, 4, 8),
        torch.tensor([0, -1, 9]),
    ),
    "paged_attention": _attention_arguments,
    "nonfinite_rows": lambda: (torch.randn(3, 8),),
    "apply_penalties": lambda: (
        torch.randn(3, 8),
        torch.zeros(3, 8, dtype=torch.bool),
        torch.ones(3, 8, dtype=torch.int32),
        *torch.rand(3, 3),
    ),
    "apply_min_p": lambda: (torch.randn(3, 8), torch.rand(3)),
    "apply_top_k_top_p": lambda: (torch.randn(3, 8), torch.tensor([1, 2, 3]).int(), torch.rand(3)),
    "gumbel_sample": lambda: (torch.randn(3, 8), torch.arange(3), torch.arange(3)),
    "gather_logprobs": lambda: (torch.randn(3, 8), torch.arange(3), 2),
}


def test_every_registered_op_is_checked_here() -> None:
    assert set(_CALLS) == {schema.split("(")[0] for schema in dispatch.SCHEMAS}


@pytest.mark.parametrize("name", _CALLS)
def test_schema_and_fake_tell_the_truth(name: str) -> None:
    torch.manual_seed(0)
    getattr(kernels, name)  # registers the ops
    op = getattr(torch.ops.pagoda, name).default
    torch.library.opcheck(op, _CALLS[name](), test_utils=("test_schema", "test_faketensor"))


@pytest.mark.parametrize("name", _CALLS)
def test_fast_path_and_reference_return_the_same_kinds(name: str) -> None:
    """The two are one op: types, shapes and mutations agree."""
    torch.manual_seed(0)
    arguments = _CALLS[name]()
    copies = tuple(x.clone() if isinstance(x, torch.Tensor) else x for x in arguments)
    actual = getattr(kernels, name)(*arguments)
    expected = dispatch.REFERENCES[name](*copies)
    torch.testing.assert_close(actual, expected)
    for mine, theirs in zip(arguments, copies, strict=True):
        if isinstance(mine, torch.Tensor):
            torch.testing.assert_close(mine, theirs)


def test_ops_can_be_compiled_as_opaque_calls() -> None:
    def block(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return kernels.silu_and_mul(kernels.rms_norm(x, weight, 1e-5) * 2)

    x, weight = torch.randn(5, 16), torch.rand(16)
    compiled = torch.compile(block, backend="eager", fullgraph=True, dynamic=True)
    torch.testing.assert_close(compiled(x, weight), block(x, weight))
