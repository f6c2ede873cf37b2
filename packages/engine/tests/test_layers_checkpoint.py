"""Names of a checkpoint against those a module expects: all that is wrong is named."""

from __future__ import annotations

import pytest
import torch
from engine.distributed.parameter import ShardedParameter
from engine.layers.checkpoint import build_slots, load_slots
from engine.types.errors import CheckpointError
from torch import nn


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fused = nn.Module()
        parts = (part("a", 0, 2), part("b", 2, 1))
        self.fused.register_parameter("weight", ShardedParameter(torch.empty(3, 4), outputs=parts))
        self.norm = nn.Module()
        self.norm.register_parameter("weight", ShardedParameter(torch.empty(4)))


def part(shard_id: str, start: int, size: int):  # type: ignore[no-untyped-def]
    from engine.distributed.sharding import Part

    return Part(shard_id=shard_id, start=start, size=size, source_start=0, source_size=size)


FUSED = {"fused": {"a": "a_proj", "b": "b_proj"}}
GOOD = {
    "a_proj.weight": torch.full((2, 4), 1.0),
    "b_proj.weight": torch.full((1, 4), 2.0),
    "norm.weight": torch.full((4,), 3.0),
}


def test_names_and_shapes_follow_from_the_module() -> None:
    slots = build_slots(Block(), FUSED)
    assert {name: slot.shape for name, slot in slots.items()} == {
        name: tuple(tensor.shape) for name, tensor in GOOD.items()
    }


def test_every_part_reaches_its_place_in_any_order() -> None:
    block = Block()
    loaded = load_slots(build_slots(block, FUSED), reversed(GOOD.items()))
    assert loaded == {"fused.weight", "norm.weight"}
    assert block.get_parameter("fused.weight")[:, 0].tolist() == [1.0, 1.0, 2.0]
    assert block.get_parameter("norm.weight").tolist() == [3.0] * 4


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"b_proj.weight": None}, "1 tensors are missing: b_proj.weight"),
        ({"extra.weight": torch.ones(1)}, "1 tensors are not part of the model: extra.weight"),
        ({"norm.weight": torch.ones(5)}, r"'norm.weight' has shape \[5\].*\[4\]"),
        ({"norm.weight": None, "nom.weight": torch.ones(4)}, r"norm\.weight; 1 tensors.*nom\.weight"),
    ],
)
def test_what_does_not_fit_is_named(change: dict[str, torch.Tensor | None], words: str) -> None:
    weights = {name: tensor for name, tensor in {**GOOD, **change}.items() if tensor is not None}
    with pytest.raises(CheckpointError, match=words):
        load_slots(build_slots(Block(), FUSED), weights.items())


def test_a_tensor_given_twice_is_refused() -> None:
    with pytest.raises(CheckpointError, match=r"'norm\.weight' twice"):
        load_slots(build_slots(Block(), FUSED), [*GOOD.items(), ("norm.weight", torch.ones(4))])


def test_long_lists_are_cut_short() -> None:
    extra = [(f"layers.{index}.weight", torch.ones(1)) for index in range(30)]
    with pytest.raises(CheckpointError, match=r"30 tensors.*layers\.7\.weight, \.\.\. \(22 more\)"):
        load_slots(build_slots(Block(), FUSED), [*GOOD.items(), *extra])


def test_ignored_endings_are_no_error() -> None:
    load_slots(build_slots(Block(), FUSED), [*GOOD.items(), ("x.inv_freq", torch.ones(1))], (".inv_freq",))
