"""Numeric ops: one signature per op, a plain-torch reference and a fast path per device.

This package knows tensors and nothing else. `import kernels` loads no torch: the ops arrive with the first
attribute that is asked for, so that a probe for a package of this name stays cheap.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kernels.dispatch import prepare_device as prepare_device
    from kernels.ops import apply_min_p as apply_min_p
    from kernels.ops import apply_penalties as apply_penalties
    from kernels.ops import apply_top_k_top_p as apply_top_k_top_p
    from kernels.ops import fused_add_rms_norm as fused_add_rms_norm
    from kernels.ops import gather_logprobs as gather_logprobs
    from kernels.ops import gelu_and_mul as gelu_and_mul
    from kernels.ops import gumbel_sample as gumbel_sample
    from kernels.ops import nonfinite_rows as nonfinite_rows
    from kernels.ops import paged_attention as paged_attention
    from kernels.ops import rms_norm as rms_norm
    from kernels.ops import rotary_embedding as rotary_embedding
    from kernels.ops import silu_and_mul as silu_and_mul
    from kernels.ops import write_kv_cache as write_kv_cache
    from kernels.packed_linear import PackedLinear as PackedLinear
    from kernels.packed_linear import linear as linear
    from kernels.packed_linear import pack_linear as pack_linear

_HOMES = {
    "kernels.dispatch": ("prepare_device",),
    "kernels.ops": (
        "apply_min_p",
        "apply_penalties",
        "apply_top_k_top_p",
        "fused_add_rms_norm",
        "gather_logprobs",
        "gelu_and_mul",
        "gumbel_sample",
        "nonfinite_rows",
        "paged_attention",
        "rms_norm",
        "rotary_embedding",
        "silu_and_mul",
        "write_kv_cache",
    ),
    "kernels.packed_linear": ("PackedLinear", "linear", "pack_linear"),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = sorted(_HOME_OF)


def __getattr__(name: str) -> object:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'kernels' has no attribute {name!r}")
    value: object = getattr(importlib.import_module(_HOME_OF[name]), name)
    # Kept, so that only the first use pays for the lookup.
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return list(__all__)
