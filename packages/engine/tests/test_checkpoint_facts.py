"""Facts of checkpoints: what transformers wrote is read as transformers reads it, and bad folders are
named."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from engine.config.checkpoint import architecture_of_path, read_facts
from engine.types.errors import CheckpointError
from tiny_checkpoints import build_llama
from tiny_gguf import write_gguf


@pytest.fixture
def folder(tmp_path: Path, tiny_llama_dir: Path) -> Path:
    """A copy of the tiny Llama that a test may damage."""
    return Path(shutil.copytree(tiny_llama_dir, tmp_path / "copy"))


def edit(file: Path, **changes: Any) -> None:  # JSON values; None removes the key
    tree = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({key: value for key, value in tree.items() if value is not None}))


def test_folder_as_transformers_saves_it(tiny_llama_dir: Path) -> None:
    facts = read_facts(tiny_llama_dir)
    assert (facts.format, facts.architecture, facts.dtype) == ("safetensors", "LlamaForCausalLM", "float32")
    assert facts.weight_files == ["model.safetensors"]
    header_len = struct.unpack("<Q", (tiny_llama_dir / "model.safetensors").read_bytes()[:8])[0]
    size = (tiny_llama_dir / "model.safetensors").stat().st_size
    assert facts.weight_bytes == size - 8 - header_len
    assert (facts.vocab_size, facts.max_position_embeddings) == (512, 1024)
    assert (facts.bos_token_id, facts.eos_token_ids, facts.quantization) == (0, [1], None)
    assert facts.has_tokenizer
    assert facts.chat_template == (tiny_llama_dir / "chat_template.jinja").read_text()
    assert facts.config["num_key_value_heads"] == 4
    assert architecture_of_path(tiny_llama_dir) == "LlamaForCausalLM"


def test_ends_of_sequence_come_from_the_generation_config_first(tiny_qwen2_dir: Path) -> None:
    facts = read_facts(tiny_qwen2_dir)
    assert facts.config["eos_token_id"] == 2
    assert facts.eos_token_ids == [2, 0]
    assert facts.generation_config["top_p"] == 0.8


@pytest.mark.parametrize(("stated", "expected"), [(7, [7]), ([7, 8, 7], [7, 8]), (None, [])])
def test_ends_of_sequence_may_be_one_or_several(folder: Path, stated: Any, expected: list[int]) -> None:
    (folder / "generation_config.json").unlink()
    edit(folder / "config.json", eos_token_id=stated)
    assert read_facts(folder).eos_token_ids == expected


def test_ends_of_sequence_must_be_ids(folder: Path) -> None:
    edit(folder / "generation_config.json", eos_token_id="</s>")
    with pytest.raises(CheckpointError, match="eos_token_id='</s>'"):
        read_facts(folder)


def test_shards_are_found_through_the_index(tmp_path: Path) -> None:
    facts = read_facts(build_llama(tmp_path, max_shard_size="200KB"))
    assert len(facts.weight_files) > 2
    assert facts.weight_bytes == read_facts(build_llama(tmp_path / "whole")).weight_bytes


@pytest.mark.parametrize(
    "name",
    ["../outside.safetensors", "/etc/x.safetensors", "sub/x.safetensors", "..\\x.safetensors", "model.bin"],
)
def test_an_index_names_only_files_beside_it(folder: Path, name: str) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
    (folder / "sub").mkdir()
    shutil.copy(folder / "model.safetensors", folder / "sub" / "x.safetensors")
    with pytest.raises(CheckpointError, match="beside it is needed"):
        read_facts(folder)


def test_missing_shards_are_named(folder: Path) -> None:
    names = {f"t{i}": f"model-{i}.safetensors" for i in range(5)}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    with pytest.raises(CheckpointError, match=r"model-0\.safetensors.* and 2 more"):
        read_facts(folder)


def test_configuration_alone_is_enough_for_dummy_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    facts = read_facts(folder)
    assert (facts.format, facts.weight_files, facts.weight_bytes) == ("config", [], 0)
    assert facts.dtype == "float32"


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "consolidated.00.pth"])
def test_pickled_weights_alone_are_refused(folder: Path, name: str) -> None:
    (folder / "model.safetensors").rename(folder / name)
    with pytest.raises(CheckpointError, match=f"{name}.*can run code"):
        read_facts(folder)


def test_pickled_weights_beside_safetensors_are_left_alone(folder: Path) -> None:
    (folder / "pytorch_model.bin").write_bytes(b"never opened")
    assert read_facts(folder).weight_files == ["model.safetensors"]


def test_code_of_a_checkpoint_is_never_run(folder: Path) -> None:
    edit(folder / "config.json", auto_map={"AutoModelForCausalLM": "modeling_x.X"})
    with pytest.raises(CheckpointError, match="auto_map"):
        read_facts(folder)
    with pytest.raises(CheckpointError, match="auto_map"):
        architecture_of_path(folder)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not valid JSON"),
        ("[1]", "an object is needed"),
        ('{"a":' * 100_000, "not valid JSON"),
        ("{}", "architectures=None"),
        ('{"architectures": "LlamaForCausalLM"}', "architectures='LlamaForCausalLM'"),
        ('{"architectures": ["LlamaForCausalLM"]}', "vocab_size=None"),
        ('{"architectures": ["LlamaForCausalLM"], "vocab_size": true}', "vocab_size=True"),
        ('{"architectures": ["LlamaForCausalLM"], "vocab_size": -1}', "vocab_size=-1"),
        ('{"architectures": ["A"], "vocab_size": 1, "quantization_config": {}}', "without quant_method"),
    ],
)
def test_broken_configuration_is_named(folder: Path, text: str, message: str) -> None:
    (folder / "config.json").write_text(text)
    with pytest.raises(CheckpointError, match=message):
        read_facts(folder)


def test_quantization_method_is_a_fact(folder: Path) -> None:
    edit(folder / "config.json", quantization_config={"quant_method": "awq", "bits": 4})
    assert read_facts(folder).quantization == "awq"


def test_missing_places_are_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="does not exist"):
        read_facts(tmp_path / "none")
    with pytest.raises(CheckpointError, match=r"no config\.json"):
        read_facts(tmp_path)
    (tmp_path / "x.gguf").touch()
    with pytest.raises(CheckpointError, match=r"name one of its \.gguf files: x\.gguf"):
        read_facts(tmp_path)


@pytest.mark.parametrize("length", [0, 7, 8, 100, -1])
def test_truncated_weights_are_noticed_before_loading(folder: Path, length: int) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:length])
    with pytest.raises(CheckpointError, match=r"model\.safetensors.*(truncated|damaged)"):
        read_facts(folder)


def rewrite_header(file: Path, change: Any) -> None:  # a function of the header
    data = file.read_bytes()
    header_len = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + header_len])
    change(header)
    written = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(written)) + written + data[8 + header_len :])


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("data_offsets", [0, 1 << 60], "bytes where"),
        ("data_offsets", [-4, 0], "at"),
        ("data_offsets", [4], "at"),
        ("shape", [1 << 40, 1 << 40], "bytes where"),
        ("shape", [True], "shape"),
        ("dtype", "X9", "'X9', which is not supported"),
    ],
)
def test_what_a_safetensors_header_claims_is_checked(
    folder: Path, field: str, value: Any, message: str
) -> None:
    rewrite_header(
        folder / "model.safetensors", lambda header: header["model.norm.weight"].update({field: value})
    )
    with pytest.raises(CheckpointError, match=message):
        read_facts(folder)


def test_overlapping_tensors_are_refused(folder: Path) -> None:
    def overlap(header: dict[str, Any]) -> None:  # the file's JSON
        norms = [name for name in header if name.endswith("layernorm.weight")]
        header[norms[0]]["data_offsets"] = header[norms[1]]["data_offsets"]

    rewrite_header(folder / "model.safetensors", overlap)
    with pytest.raises(CheckpointError, match="gap or an overlap"):
        read_facts(folder)


def test_chat_template_has_its_places(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink()
    assert read_facts(folder).chat_template is None
    edit(folder / "tokenizer_config.json", chat_template="plain")
    assert read_facts(folder).chat_template == "plain"
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "chat"}]
    edit(folder / "tokenizer_config.json", chat_template=named)
    assert read_facts(folder).chat_template == "chat"
    (folder / "chat_template.jinja").write_text("own file")
    assert read_facts(folder).chat_template == "own file"


def test_another_tokenizer_brings_its_template(folder: Path, tiny_qwen2_dir: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(tiny_qwen2_dir, tmp_path / "other"))
    (other / "chat_template.jinja").write_text("of the other")
    (folder / "tokenizer.json").unlink()
    assert not read_facts(folder).has_tokenizer
    for tokenizer in (other, other / "tokenizer.json"):
        facts = read_facts(folder, tokenizer=tokenizer)
        assert (facts.has_tokenizer, facts.chat_template) == (True, "of the other")
    with pytest.raises(CheckpointError, match=r"model\.tokenizer="):
        read_facts(folder, tokenizer=folder)


def test_default_model(smollm2_path: Path) -> None:
    facts = read_facts(smollm2_path)
    assert (facts.format, facts.architecture, facts.quantization) == ("gguf", "LlamaForCausalLM", "gguf")
    assert (facts.dtype, facts.vocab_size, facts.max_position_embeddings) == ("Q4_1", 49152, 8192)
    assert (facts.bos_token_id, facts.eos_token_ids, facts.has_tokenizer) == (1, [2], True)
    assert facts.config["tie_word_embeddings"] is True
    assert facts.config["rope_theta"] == 100000.0
    assert facts.chat_template is not None
    assert "<|im_start|>assistant" in facts.chat_template


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2"])
def test_gguf_configuration_equals_the_one_it_was_made_from(
    family: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    folder: Path = request.getfixturevalue(f"tiny_{family}_dir")
    original = read_facts(folder)
    extra = {"llama.attention.sliding_window": 4096} if family == "mistral" else {}
    facts = read_facts(write_gguf(tmp_path / "tiny.gguf", folder, quantization="Q8_0", extra=extra))
    assert facts.architecture == original.architecture
    assert (facts.dtype, facts.chat_template) == ("Q8_0", original.chat_template)
    assert facts.vocab_size == original.vocab_size
    assert facts.eos_token_ids[0] == original.eos_token_ids[0]
    for key in (
        "model_type",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "max_position_embeddings",
        "tie_word_embeddings",
        "bos_token_id",
        "eos_token_id",
        "hidden_act",
    ):
        assert facts.config[key] == original.config[key], key
    assert facts.config["head_dim"] == 8
    assert facts.config["rms_norm_eps"] == pytest.approx(original.config["rms_norm_eps"])
    assert facts.config["rope_theta"] == original.config["rope_parameters"]["rope_theta"]
    if family == "mistral":
        assert facts.config["sliding_window"] == original.config["sliding_window"]


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ({}, None),
        ({"llama.rope.scaling.type": "none"}, None),
        (
            {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 2.0},
            {"rope_type": "linear", "factor": 2.0},
        ),
        ({"llama.rope.scale_linear": 4.0}, {"rope_type": "linear", "factor": 4.0}),
        (
            {
                "llama.rope.scaling.type": "yarn",
                "llama.rope.scaling.factor": 4.0,
                "llama.rope.scaling.original_context_length": 256,
            },
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256},
        ),
    ],
)
def test_gguf_rope_scaling(
    tmp_path: Path, tiny_llama_dir: Path, extra: dict[str, Any], expected: Any
) -> None:
    facts = read_facts(write_gguf(tmp_path / "tiny.gguf", tiny_llama_dir, extra=extra))
    assert facts.config["rope_scaling"] == expected


def test_llama3_scaling_is_recovered_from_its_divisors() -> None:
    """The divisors are computed by transformers' own function; the settings found must be those it was
    given."""
    from engine.config.gguf_config import _compute_llama3_divisors
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    stated = {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    config = LlamaConfig(
        hidden_size=512,
        num_attention_heads=8,
        head_dim=64,
        max_position_embeddings=131072,
        rope_parameters=stated,
    )
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    plain = 500000.0 ** -(torch.arange(0, 64, 2) / 64)
    ours = _compute_llama3_divisors(64, 500000.0, 32.0, 8192)
    np.testing.assert_allclose(ours, (plain / scaled).numpy(), rtol=1e-5)


@pytest.mark.parametrize(("factor", "original"), [(8.0, 8192), (32.0, 8192), (4.0, 4096)])
def test_llama3_scaling_in_a_file(tmp_path: Path, factor: float, original: int) -> None:
    from engine.config.gguf_config import _compute_llama3_divisors

    divisors = _compute_llama3_divisors(64, 500000.0, factor, original).astype(np.float32)
    facts = read_facts(write_shape_only(tmp_path / "x.gguf", divisors))
    assert facts.config["rope_scaling"] == {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": original,
    }


def test_unknown_divisors_are_refused(tmp_path: Path) -> None:
    divisors = np.linspace(1, 5, 32, dtype=np.float32)
    with pytest.raises(CheckpointError, match="rotary frequencies"):
        read_facts(write_shape_only(tmp_path / "x.gguf", divisors))
    assert (
        read_facts(write_shape_only(tmp_path / "y.gguf", np.ones(32, np.float32))).config["rope_scaling"]
        is None
    )


def write_shape_only(path: Path, divisors: np.ndarray[Any, np.dtype[np.float32]], **changes: Any) -> Path:
    """Write a Llama of one head of 64 that holds nothing but an embedding and the divisors of its
    frequencies."""
    writer = gguf.GGUFWriter(path, changes.pop("arch", "llama"))
    sizes = {
        "block_count": 1,
        "context_length": 131072,
        "embedding_length": 64,
        "feed_forward_length": 64,
        "attention.head_count": 1,
    }
    for key, value in (sizes | changes).items():
        if value is not None:
            writer.add_uint32(f"llama.{key}", value)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_float32("llama.rope.freq_base", 500000.0)
    writer.add_tensor("token_embd.weight", np.zeros((4, 64), np.float32))
    writer.add_tensor("rope_freqs.weight", divisors)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"arch": "gpt2"}, "architecture 'gpt2', which is not supported"),
        ({"attention.head_count": None}, r"llama\.attention\.head_count=None"),
        ({"embedding_length": 0}, r"llama\.embedding_length=0"),
        ({"expert_count": 8}, "mixture of experts"),
    ],
)
def test_gguf_metadata_that_cannot_be_served_is_named(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    path = write_shape_only(tmp_path / "x.gguf", np.ones(32, np.float32), **changes)
    with pytest.raises(CheckpointError, match=message):
        read_facts(path)


def test_unknown_gguf_architecture_goes_by_its_own_name(tmp_path: Path) -> None:
    path = write_shape_only(tmp_path / "x.gguf", np.ones(32, np.float32), arch="gemma9")
    assert architecture_of_path(path) == "gemma9"


def test_one_part_of_several_is_refused(tmp_path: Path, tiny_llama_dir: Path) -> None:
    path = write_gguf(tmp_path / "tiny-00001-of-00002.gguf", tiny_llama_dir, extra={"split.count": 2})
    with pytest.raises(CheckpointError, match="merge the parts"):
        read_facts(path)


def test_reading_facts_and_tokenizers_needs_no_torch() -> None:
    code = (
        "import sys, engine.config.checkpoint, engine.loader.source, engine.frontend.tokenizer\n"
        "assert not {'torch', 'transformers', 'gguf'} & set(sys.modules), sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
