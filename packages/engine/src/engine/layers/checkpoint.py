"""Bringing a checkpoint's tensors, by their names, to the parameters that hold them.

The names a model expects are derived from the model itself: the path of each parameter, with a fused layer's
name replaced by the names of its parts. So what is missing, unexpected or misshapen is known exactly.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import nn

from engine.distributed.parameter import ShardedParameter
from engine.distributed.sharding import ShardId
from engine.types.errors import CheckpointError

FusedNames = Mapping[str, Mapping[ShardId, str]]
"""Module name of a fused layer -> shard id -> module name in the checkpoint."""

# A checkpoint of another model misses hundreds of names; a few show what is wrong.
_SHOWN = 8


@dataclass(frozen=True, slots=True)
class Slot:
    """Where one tensor of a checkpoint goes."""

    parameter_name: str
    parameter: ShardedParameter
    shard_id: ShardId
    shape: tuple[int, ...]
    """Of the full tensor."""


def build_slots(module: nn.Module, fused: FusedNames) -> dict[str, Slot]:
    """Return the slot of every tensor that the module expects, by checkpoint name, in model order."""
    slots: dict[str, Slot] = {}
    for name, parameter in module.named_parameters():
        assert isinstance(parameter, ShardedParameter), f"{name} cannot load a shard"
        for shard_id, shape in parameter.source_shapes().items():
            slots[_checkpoint_name(name, shard_id, fused)] = Slot(name, parameter, shard_id, shape)
    return slots


def load_slots(
    slots: Mapping[str, Slot], weights: Iterable[tuple[str, torch.Tensor]], ignored: tuple[str, ...] = ()
) -> set[str]:
    """Fill every slot and return the names of the parameters that were loaded.

    Args:
        ignored: endings of checkpoint names that mean nothing to this model.

    Mutates: the parameters.

    Raises:
        CheckpointError: a tensor is missing, unexpected, given twice or of another shape; all are named.
    """
    loaded: set[str] = set()
    unexpected: list[str] = []
    for name, tensor in weights:
        slot = slots.get(name)
        if slot is None:
            if not name.endswith(ignored):
                unexpected.append(name)
            continue
        if name in loaded:
            raise CheckpointError(f"the checkpoint holds {name!r} twice; remove the stale weight file.")
        try:
            slot.parameter.load_shard(tensor, slot.shard_id)
        except ValueError as error:
            raise CheckpointError(f"tensor {name!r} {error}; the checkpoint is not what it says.") from error
        loaded.add(name)
    missing = [name for name in slots if name not in loaded]
    if missing or unexpected:
        raise CheckpointError(_describe(missing, unexpected))
    return {slot.parameter_name for slot in slots.values()}


def _checkpoint_name(name: str, shard_id: ShardId, fused: FusedNames) -> str:
    path = name.split(".")
    # [... , module, "weight"]
    parts = fused.get(path[-2]) if len(path) > 1 else None
    if parts is not None:
        path[-2] = parts[shard_id]
    return ".".join(path)


def _describe(missing: list[str], unexpected: list[str]) -> str:
    sentences = []
    if missing:
        sentences.append(f"{len(missing)} tensors are missing: {_some(missing)}")
    if unexpected:
        sentences.append(f"{len(unexpected)} tensors are not part of the model: {_some(unexpected)}")
    return f"the checkpoint does not fit the model; {'; '.join(sentences)}."


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:_SHOWN])
    return f"{shown}, ... ({len(names) - _SHOWN} more)" if len(names) > _SHOWN else shown
