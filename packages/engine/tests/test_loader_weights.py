"""Loaders against a model that records: every tensor under its name, with its values, and progress by
bytes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from engine.config.checkpoint import read_facts
from engine.config.engine_config import EngineConfig
from engine.config.model import ModelConfig
from engine.distributed.groups import FakeGroup
from engine.distributed.parameter import ShardedParameter
from engine.distributed.sharding import split_even, whole
from engine.loader.base import Loader
from engine.loader.dummy import DummyLoader
from engine.loader.gguf import GgufLoader
from engine.loader.gguf_names import translate_name
from engine.loader.safetensors import SafetensorsLoader
from engine.types.errors import CheckpointError
from safetensors.torch import load_file, save_file
from tiny_checkpoints import build_llama
from tiny_gguf import interleave, translate, write_gguf


class RecordingModel:
    """Takes whatever comes, and wants the shapes it was given."""

    def __init__(self, shapes: dict[str, tuple[int, ...]] | None = None) -> None:
        self.shapes = shapes or {}
        self.weights: dict[str, torch.Tensor] = {}
        self.is_finished = False

    def checkpoint_shapes(self) -> dict[str, tuple[int, ...]]:
        return self.shapes

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        assert not self.is_finished
        for name, tensor in weights:
            assert name not in self.weights
            # A loader may reuse its memory for the next tensor.
            self.weights[name] = tensor.clone()
        return set(self.weights)

    def finish_loading(self) -> None:
        self.is_finished = True


def build(kind: type[Loader], path: Path, *, dtype: Any = "float32", seed: int = 0) -> Loader:  # a DtypeName
    return kind(EngineConfig(model=ModelConfig(dtype=dtype, seed=seed), checkpoint=read_facts(path)))


def load(loader: Loader, model: RecordingModel | None = None) -> tuple[RecordingModel, list[float]]:
    model = model or RecordingModel()
    fractions: list[float] = []

    def report(phase: str, fraction: float) -> None:
        assert phase == "load_weights"
        fractions.append(fraction)

    loader.load(model, report)
    assert model.is_finished
    return model, fractions


def assert_same(actual: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert actual.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(actual[name], tensor), name


def test_one_file(tiny_qwen2_dir: Path) -> None:
    model, fractions = load(build(SafetensorsLoader, tiny_qwen2_dir))
    assert_same(model.weights, load_file(tiny_qwen2_dir / "model.safetensors"))
    assert fractions[0] == 0.0
    assert fractions[-2:] == [1.0, 1.0]
    assert fractions == sorted(fractions)


def test_progress_counts_bytes(tiny_llama_dir: Path) -> None:
    model, fractions = load(build(SafetensorsLoader, tiny_llama_dir))
    sizes = [tensor.nbytes for tensor in model.weights.values()]
    expected = np.cumsum(sizes) / sum(sizes)
    np.testing.assert_allclose(fractions[1:-1], expected)


def test_several_files(tmp_path: Path, tiny_llama_dir: Path) -> None:
    sharded = build_llama(tmp_path, max_shard_size="200KB")
    assert not (sharded / "model.safetensors").exists()
    model, _ = load(build(SafetensorsLoader, sharded))
    assert_same(model.weights, load_file(tiny_llama_dir / "model.safetensors"))


def test_file_that_shrinks_after_its_facts_were_read(tmp_path: Path, tiny_llama_dir: Path) -> None:
    folder = Path(shutil.copytree(tiny_llama_dir, tmp_path / "copy"))
    loader = build(SafetensorsLoader, folder)
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-4])
    with pytest.raises(CheckpointError, match="truncated"):
        load(loader)


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2"])
def test_gguf_brings_back_the_tensors_it_was_made_from(
    family: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    folder: Path = request.getfixturevalue(f"tiny_{family}_dir")
    model, fractions = load(build(GgufLoader, write_gguf(tmp_path / "tiny.gguf", folder)))
    assert_same(model.weights, load_file(folder / "model.safetensors"))
    assert fractions == sorted(fractions)
    assert fractions[-2] == 1.0


@pytest.mark.parametrize("quantization", ["F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_quantized_gguf_is_what_the_gguf_package_decodes(
    quantization: str, tmp_path: Path, tiny_llama_dir: Path
) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", tiny_llama_dir, quantization=quantization)
    model, _ = load(build(GgufLoader, path, dtype="bfloat16"))
    decoded = {
        tensor.name: gguf.dequantize(tensor.data, tensor.tensor_type)
        for tensor in gguf.GGUFReader(path).tensors
    }
    assert len(decoded) == len(model.weights)
    for name, tensor in model.weights.items():
        stem, _, ending = name.rpartition(".")
        values = tensor
        expected = torch.from_numpy(np.array(decoded[translate(stem, ending)])).bfloat16()
        if stem.endswith(("q_proj", "k_proj")):
            heads = 8 if stem.endswith("q_proj") else 4
            values = torch.from_numpy(interleave(tensor.float().numpy(), heads)).bfloat16()
        assert torch.equal(values, expected.view_as(values)), name


def test_projection_that_heads_do_not_share_is_refused(tmp_path: Path, tiny_llama_dir: Path) -> None:
    extra = {"llama.attention.head_count": 7, "llama.attention.key_length": 8}
    path = write_gguf(tmp_path / "tiny.gguf", tiny_llama_dir, extra=extra)
    with pytest.raises(CheckpointError, match=r"attn_q.*7 heads"):
        load(build(GgufLoader, path))


def test_divisors_of_rope_are_no_weight(tmp_path: Path, tiny_llama_dir: Path) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", tiny_llama_dir, extra={"llama.rope.freq_base": 500000.0})
    reader = gguf.GGUFReader(path)
    writer = gguf.GGUFWriter(tmp_path / "scaled.gguf", "llama")
    for key, value in {
        "block_count": 3,
        "context_length": 1024,
        "embedding_length": 64,
        "feed_forward_length": 128,
        "attention.head_count": 8,
        "attention.head_count_kv": 4,
    }.items():
        writer.add_uint32(f"llama.{key}", value)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-6)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, np.array(tensor.data))
    writer.add_tensor("rope_freqs.weight", np.ones(4, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    model, _ = load(build(GgufLoader, tmp_path / "scaled.gguf"))
    assert_same(model.weights, load_file(tiny_llama_dir / "model.safetensors"))


def test_names_without_a_translation_stay_as_they_are() -> None:
    for name in ("blk.0.ssm_a", "blk.0.attn_sinks.weight", "rope_factors_long.weight", "v.patch_embd.weight"):
        assert translate_name(name) == name


def test_default_model_loads_every_parameter(smollm2_path: Path) -> None:
    model, _ = load(build(GgufLoader, smollm2_path, dtype="bfloat16"))
    assert len(model.weights) == 272
    assert sum(tensor.numel() for tensor in model.weights.values()) == 134_515_008
    assert all(tensor.isfinite().all() for tensor in model.weights.values())
    assert {tensor.dtype for tensor in model.weights.values()} == {torch.bfloat16}


SHAPES = {"a.weight": (64, 32), "b.weight": (64, 32), "norm.weight": (64,), "a.bias": (64,)}


def test_dummy_weights_depend_on_seed_and_name_alone(tiny_llama_dir: Path) -> None:
    model, fractions = load(build(DummyLoader, tiny_llama_dir), RecordingModel(SHAPES))
    assert {name: tuple(tensor.shape) for name, tensor in model.weights.items()} == SHAPES
    assert fractions == sorted(fractions)
    assert fractions[-2] == 1.0
    again, _ = load(build(DummyLoader, tiny_llama_dir), RecordingModel(dict(reversed(SHAPES.items()))))
    for name, tensor in model.weights.items():
        assert torch.equal(tensor, again.weights[name])
    other, _ = load(build(DummyLoader, tiny_llama_dir, seed=1), RecordingModel(SHAPES))
    assert not torch.equal(model.weights["a.weight"], other.weights["a.weight"])
    assert not torch.equal(model.weights["a.weight"], model.weights["b.weight"])


def test_dummy_weights_are_neither_dead_nor_wild(tiny_llama_dir: Path) -> None:
    model, _ = load(build(DummyLoader, tiny_llama_dir, dtype="bfloat16"), RecordingModel(SHAPES))
    weights = {name: tensor.float() for name, tensor in model.weights.items()}
    assert {tensor.dtype for tensor in model.weights.values()} == {torch.bfloat16}
    # Rows of 32 with a variance of 1 / 32 keep the size of what they multiply.
    assert weights["a.weight"].square().sum(dim=1).mean() == pytest.approx(1.0, rel=0.1)
    assert weights["norm.weight"].min() > 0.8
    assert weights["a.bias"].abs().max() < 0.101


def test_dummy_weights_are_the_same_however_they_are_split(tiny_llama_dir: Path) -> None:
    full, _ = load(build(DummyLoader, tiny_llama_dir), RecordingModel({"a.weight": (64, 32)}))
    shards = []
    for rank in range(2):
        group = FakeGroup(rank, 2)
        outputs = split_even(64, group.rank, group.world_size, "rows")
        parameter = ShardedParameter(torch.empty(32, 32), outputs=outputs, inputs=whole(32)[0])
        # What `checkpoint_shapes` of a model reports: the full tensor, on any rank.
        shapes = {"a.weight": parameter.source_shapes()[0]}
        recorded, _ = load(build(DummyLoader, tiny_llama_dir), RecordingModel(shapes))
        parameter.load_shard(recorded.weights["a.weight"])
        shards.append(parameter.data)
    assert torch.equal(torch.cat(shards), full.weights["a.weight"])


@pytest.mark.parametrize(
    ("change", "message"), [("missing", "missing"), ("unexpected", "not part of the model")]
)
def test_missing_and_unexpected_tensors_are_named_by_the_model(
    change: str, message: str, tmp_path: Path, tiny_llama_dir: Path
) -> None:
    from engine.attention.backends.torch import TorchAttention
    from engine.layers.context import ModelContext
    from engine.models.llama import LlamaForCausalLM
    from engine.quantization.methods.none import Unquantized

    folder = Path(shutil.copytree(tiny_llama_dir, tmp_path / "copy"))
    tensors = load_file(folder / "model.safetensors")
    name = "model.layers.1.mlp.up_proj.weight"
    tensor = tensors.pop(name)
    if change == "unexpected":
        tensors |= {name: tensor, "model.layers.1.mlp.extra.weight": tensor.clone()}
        name = "model.layers.1.mlp.extra.weight"
    save_file(tensors, folder / "model.safetensors")
    context = ModelContext(
        dtype=torch.float32,
        device=torch.device("cpu"),
        quantization=Unquantized(),
        attention_backend=TorchAttention,
        cache_dtype=torch.float32,
        block_size=16,
        max_model_len=1024,
    )
    model = LlamaForCausalLM(json.loads((folder / "config.json").read_text()), context)
    with pytest.raises(CheckpointError, match=f"{message}.*{name}"):
        build(SafetensorsLoader, folder).load(model, lambda phase, fraction: None)
