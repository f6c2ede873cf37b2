"""GGUF metadata under the keys of a Hugging Face config.json, for the architectures that are translated.

Everything the file states about the model's shape is set, for defaults elsewhere are one checkpoint's values.
Knows names and numbers; it decodes no weight but the few numbers that state a rope scaling.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.config.gguf_file import GgufFile
from engine.types.errors import CheckpointError

ROPE_FACTORS_TENSOR = "rope_freqs.weight"
"""Divisors of the rotary frequencies: how GGUF stores Llama 3's scaling."""


@dataclass(frozen=True, slots=True)
class GgufArchitecture:
    """What an architecture of GGUF is elsewhere."""

    model_type: str
    class_name: str


ARCHITECTURES = {
    "llama": GgufArchitecture("llama", "LlamaForCausalLM"),
    "qwen2": GgufArchitecture("qwen2", "Qwen2ForCausalLM"),
}


def get_architecture(file: GgufFile) -> str:
    """Return the class name that the architecture has in a config.json, or GGUF's own name if it is unknown
    here.

    Raises:
        CheckpointError: the file does not state it.
    """
    name = file.metadata.get("general.architecture")
    if not isinstance(name, str) or not name:
        raise CheckpointError(f"{file.path} does not state general.architecture; it is no model.")
    if name == "llama" and _get_window(file, name):
        return "MistralForCausalLM"
    return ARCHITECTURES[name].class_name if name in ARCHITECTURES else name


def translate_config(file: GgufFile) -> dict[str, Any]:  # keys and values of a config.json
    """Return what a config.json of the same model would say.

    Raises:
        CheckpointError: the architecture is not translated, or a value is missing or cannot be served.
    """
    class_name = get_architecture(file)
    name = file.metadata["general.architecture"]
    if name not in ARCHITECTURES:
        raise CheckpointError(
            f"{file.path} has the architecture {name!r}, which is not supported; GGUF files of "
            f"{', '.join(ARCHITECTURES)} are."
        )
    if file.metadata.get("split.count", 1) not in (0, 1):
        raise CheckpointError(
            f"{file.path} is one part of several; merge the parts into one file (gguf-split)."
        )
    if file.metadata.get(f"{name}.expert_count"):
        raise CheckpointError(
            f"{file.path} is a mixture of experts, which is not supported for GGUF {name!r}."
        )
    reader = _Reader(file, name)
    num_heads = reader.size("attention.head_count")
    hidden_size = reader.size("embedding_length")
    head_dim = reader.size("attention.key_length", hidden_size // num_heads)
    config: dict[str, Any] = {
        "architectures": [class_name],
        "model_type": "mistral" if class_name == "MistralForCausalLM" else ARCHITECTURES[name].model_type,
        "hidden_act": "silu",
        "hidden_size": hidden_size,
        "intermediate_size": reader.size("feed_forward_length"),
        "num_hidden_layers": reader.size("block_count"),
        "num_attention_heads": num_heads,
        "num_key_value_heads": reader.size("attention.head_count_kv", num_heads),
        "head_dim": head_dim,
        "max_position_embeddings": reader.size("context_length"),
        "rms_norm_eps": reader.number("attention.layer_norm_rms_epsilon"),
        "vocab_size": _get_vocab_size(file),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "attention_bias": "blk.0.attn_q.bias" in file.tensors,
        "rope_theta": reader.number("rope.freq_base", 10000.0),
        "rope_scaling": _translate_rope_scaling(reader, head_dim),
    }
    if window := _get_window(file, name):
        config |= {"sliding_window": window, "use_sliding_window": True}
    rotary_dim = reader.size("rope.dimension_count", head_dim)
    if rotary_dim != head_dim:
        config["partial_rotary_factor"] = rotary_dim / head_dim
    for key, source in (("bos", "bos"), ("eos", "eos"), ("pad", "padding")):
        config[f"{key}_token_id"] = get_token_id(file, f"{source}_token_id")
    return config


def get_token_id(file: GgufFile, name: str) -> int | None:
    """Return a special token's id by its name under `tokenizer.ggml.`, or None."""
    value = file.metadata.get(f"tokenizer.ggml.{name}")
    return value if isinstance(value, int) and not isinstance(value, bool) and value < 1 << 31 else None


class _Reader:
    """Takes an architecture's numbers out of the metadata, checked."""

    def __init__(self, file: GgufFile, name: str) -> None:
        self.file = file
        self._prefix = name

    def get(self, key: str) -> Any:  # any metadata value
        return self.file.metadata.get(f"{self._prefix}.{key}")

    def size(self, key: str, default: int | None = None) -> int:
        value = self.get(key)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 1 << 31:
            raise self.error(key, value, "a positive integer")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self.get(key)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise self.error(key, value, "a positive number")
        return float(value)

    def error(self, key: str, value: object, expected: str) -> CheckpointError:
        return CheckpointError(
            f"{self.file.path}: {self._prefix}.{key}={value!r} in its metadata; {expected} is needed. "
            "The file is damaged or of another kind."
        )


def _get_vocab_size(file: GgufFile) -> int:
    # The embedding's rows are what the model computes with, whatever else the metadata says.
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise CheckpointError(f"{file.path} has no tensor 'token_embd.weight'; it is no language model.")
    return embedding.shape[0]


def _get_window(file: GgufFile, name: str) -> int:
    value = file.metadata.get(f"{name}.attention.sliding_window")
    return value if isinstance(value, int) and 0 < value < 1 << 31 else 0


def _translate_rope_scaling(reader: _Reader, head_dim: int) -> dict[str, Any] | None:
    if ROPE_FACTORS_TENSOR in reader.file.tensors:
        return _recover_llama3_scaling(reader, head_dim)
    kind = reader.get("rope.scaling.type")
    if kind in (None, "none"):
        factor = reader.number("rope.scale_linear", 1.0)
        return None if factor == 1.0 else {"rope_type": "linear", "factor": factor}
    factor = reader.number("rope.scaling.factor", 1.0)
    if kind == "linear":
        return {"rope_type": "linear", "factor": factor}
    if kind == "yarn" and reader.number("rope.scaling.attn_factor", 1.0) == 1.0:
        original = reader.size("rope.scaling.original_context_length")
        return {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original}
    raise reader.error("rope.scaling.type", kind, "none, linear or yarn without a factor on attention")


def _recover_llama3_scaling(reader: _Reader, head_dim: int) -> dict[str, Any] | None:
    """Find the settings that give the stored divisors; the file has only the outcome.

    Source: the formula of Llama 3.1's release (`rope_type: llama3`); its models keep 1 and 4 as bounds.
    """
    tensor = reader.file.tensors[ROPE_FACTORS_TENSOR]
    if tensor.type_name != "F32" or tensor.shape != (head_dim // 2,):
        raise reader.error(ROPE_FACTORS_TENSOR, (tensor.type_name, *tensor.shape), "F32, half a head long,")
    stored = reader.file.get_tensor_bytes(tensor).view(np.float32)
    factor = float(stored.max())
    if np.all(stored == 1.0):
        return None
    theta = reader.number("rope.freq_base", 10000.0)
    for original in (8192, 4096, 16384, 32768, 2048):
        if np.allclose(stored, _compute_llama3_divisors(head_dim, theta, factor, original), rtol=1e-3):
            return {
                "rope_type": "llama3",
                "factor": factor,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": original,
            }
    raise CheckpointError(f"{reader.file.path} scales its rotary frequencies in a way that is not supported.")


def _compute_llama3_divisors(
    head_dim: int, theta: float, factor: float, original: int
) -> NDArray[np.float64]:
    wavelengths = 2 * math.pi * theta ** (np.arange(0, head_dim, 2) / head_dim)
    smooth = np.clip((original / wavelengths - 1.0) / (4.0 - 1.0), 0.0, 1.0)
    return 1.0 / ((1.0 - smooth) / factor + smooth)
