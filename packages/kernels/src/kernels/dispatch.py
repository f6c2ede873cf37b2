"""Registers every op with torch, and sees to it that a device's fast path is loaded before its first use.

The reference serves every device (CompositeExplicitAutograd); a fast path is registered for its device's key
and then wins. Knows schemas, shapes of results and which device has a fast path; no mathematics.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from kernels.cpu import extension
from kernels.reference import activation, attention, kv_cache, norm, rotary, sampling

SCHEMAS = (
    "rms_norm(Tensor x, Tensor weight, float eps) -> Tensor",
    "fused_add_rms_norm(Tensor x, Tensor residual, Tensor weight, float eps) -> (Tensor, Tensor)",
    "silu_and_mul(Tensor x) -> Tensor",
    "gelu_and_mul(Tensor x, str approximate='none') -> Tensor",
    "rotary_embedding(Tensor positions, Tensor(a!) query, Tensor(b!) key, Tensor cos_sin_cache, "
    "int head_size, bool is_neox) -> ()",
    "write_kv_cache(Tensor key, Tensor value, Tensor(a!) key_cache, Tensor(b!) value_cache, "
    "Tensor slot_mapping) -> ()",
    "paged_attention(Tensor query, Tensor key_cache, Tensor value_cache, Tensor block_table, "
    "Tensor query_start_loc, Tensor seq_lens, float scale, *, int sliding_window=0, float soft_cap=0.0, "
    "Tensor? sinks=None, bool causal=True, int max_query_len=0) -> Tensor",
    "nonfinite_rows(Tensor logits) -> Tensor",
    "apply_penalties(Tensor(a!) logits, Tensor prompt_token_mask, Tensor output_counts, Tensor repetition, "
    "Tensor presence, Tensor frequency) -> ()",
    "apply_min_p(Tensor(a!) logits, Tensor min_p) -> ()",
    "apply_top_k_top_p(Tensor(a!) logits, Tensor? top_k, Tensor? top_p) -> ()",
    "gumbel_sample(Tensor logits, Tensor seeds, Tensor positions) -> Tensor",
    "gather_logprobs(Tensor logits, Tensor token_ids, int num_top) -> (Tensor, Tensor, Tensor, Tensor)",
)

# An implementation takes what its schema says; the signatures differ, hence Any.
_Implementation = Callable[..., Any]


def _paged_attention(*args: Any, sinks: torch.Tensor | None = None, **options: Any) -> torch.Tensor:
    # Schemas name parameters without the shape suffix of the Python signature.
    return attention.paged_attention(*args, sinks_H=sinks, **options)


REFERENCES: dict[str, _Implementation] = {
    "rms_norm": norm.rms_norm,
    "fused_add_rms_norm": norm.fused_add_rms_norm,
    "silu_and_mul": activation.silu_and_mul,
    "gelu_and_mul": activation.gelu_and_mul,
    "rotary_embedding": rotary.rotary_embedding,
    "write_kv_cache": kv_cache.write_kv_cache,
    "paged_attention": _paged_attention,
    "nonfinite_rows": sampling.nonfinite_rows,
    "apply_penalties": sampling.apply_penalties,
    "apply_min_p": sampling.apply_min_p,
    "apply_top_k_top_p": sampling.apply_top_k_top_p,
    "gumbel_sample": sampling.gumbel_sample,
    "gather_logprobs": sampling.gather_logprobs,
}

_library: torch.library.Library | None = None
_is_cpu_prepared = False


def register() -> None:
    """Define the ops with their references and fakes; later calls do nothing."""
    global _library
    if _library is not None:
        return
    _library = torch.library.Library("pagoda", "DEF")  # type: ignore[no-untyped-call]
    for schema in SCHEMAS:
        _library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))  # type: ignore[no-untyped-call]
    for name, implementation in REFERENCES.items():
        _library.impl(name, implementation, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
    for name, fake in _fakes().items():
        torch.library.register_fake(f"pagoda::{name}", fake, lib=_library)


def prepare_device(device: torch.device) -> bool:
    """Load the fast path of a device, compiling it where needed; return whether there is one.

    Ops do this by themselves; a worker that calls it while it starts keeps compiling out of the first step.
    """
    global _is_cpu_prepared
    register()
    if device.type != "cpu":
        return False
    _is_cpu_prepared = True
    return extension.load()


def prepare(tensor: torch.Tensor) -> None:
    """Load the fast path of the tensor's device before its first use; a flag check afterwards."""
    if not _is_cpu_prepared and tensor.is_cpu:
        prepare_device(tensor.device)


def _fakes() -> dict[str, _Implementation]:
    """Return, per op, what its results look like; an op that only mutates returns nothing."""

    def like(x: torch.Tensor, *_: object, **__: object) -> torch.Tensor:
        return x.new_empty(x.shape)

    def like_twice(x: torch.Tensor, *_: object) -> tuple[torch.Tensor, torch.Tensor]:
        return x.new_empty(x.shape), x.new_empty(x.shape)

    def half(x: torch.Tensor, *_: object) -> torch.Tensor:
        return x.new_empty((*x.shape[:-1], x.shape[-1] // 2))

    def nothing(*_: object) -> None:
        return None

    def row_flags(logits: torch.Tensor) -> torch.Tensor:
        return logits.new_empty(logits.shape[:1], dtype=torch.bool)

    def row_tokens(logits: torch.Tensor, *_: object) -> torch.Tensor:
        return logits.new_empty(logits.shape[:1], dtype=torch.int64)

    def logprobs(
        logits: torch.Tensor, token_ids: torch.Tensor, num_top: int
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        num_rows = logits.shape[0]
        return (
            logits.new_empty(num_rows),
            logits.new_empty(num_rows, dtype=torch.int64),
            logits.new_empty((num_rows, num_top), dtype=torch.int64),
            logits.new_empty((num_rows, num_top)),
        )

    return {
        "rms_norm": like,
        "fused_add_rms_norm": like_twice,
        "silu_and_mul": half,
        "gelu_and_mul": half,
        "rotary_embedding": nothing,
        "write_kv_cache": nothing,
        "paged_attention": like,
        "nonfinite_rows": row_flags,
        "apply_penalties": nothing,
        "apply_min_p": nothing,
        "apply_top_k_top_p": nothing,
        "gumbel_sample": row_tokens,
        "gather_logprobs": logprobs,
    }
