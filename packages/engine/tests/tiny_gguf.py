"""Writes a tiny checkpoint of transformers as a GGUF file, the way conversion for llama.cpp lays it out.

Written by the `gguf` package's own writer, so that our reader meets files that are not of our making.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

LEAVES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
TOP = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def write_gguf(
    path: Path,
    folder: Path,
    *,
    quantization: str = "F32",
    extra: dict[str, Any] | None = None,  # metadata: int, float, str or bool
    pre: str = "llama-bpe",
    adds_bos: bool = True,
) -> Path:
    """Write the float32 Llama, Mistral or Qwen2 checkpoint in a folder as one GGUF file and return its path.

    Args:
        quantization: of the matrices whose rows it fits; vectors stay F32.
        extra: metadata to add or to override.
        pre: name of the split of a byte-level tokenizer.
        adds_bos: flag of the tokenizer, where the checkpoint has a begin token.
    """
    config = json.loads((folder / "config.json").read_text())
    arch = "qwen2" if config["model_type"] == "qwen2" else "llama"
    writer = gguf.GGUFWriter(path, arch)
    entries: dict[str, Any] = {
        "block_count": config["num_hidden_layers"],
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "rope.freq_base": config["rope_parameters"]["rope_theta"],
    }
    metadata = {f"{arch}.{key}": value for key, value in entries.items()} | (extra or {})
    for key, value in metadata.items():
        _add(writer, key, value)
    _add_tokenizer(writer, folder, config, pre, adds_bos)
    kind = gguf.GGMLQuantizationType[quantization]
    for name, values in load_file(folder / "model.safetensors").items():
        values = values.astype(np.float32)
        stem, _, ending = name.rpartition(".")
        if arch == "llama" and stem.endswith(("q_proj", "k_proj")):
            heads = config["num_attention_heads" if stem.endswith("q_proj") else "num_key_value_heads"]
            values = interleave(values, heads)
        is_matrix = values.ndim == 2
        if is_matrix and kind != gguf.GGMLQuantizationType.F32:
            writer.add_tensor(translate(stem, ending), gguf.quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(translate(stem, ending), values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def interleave(values: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Pair each row of a head's first half with one of its second, as GGUF files of Llama models have
    them."""
    halves = values.reshape(heads, 2, -1, *values.shape[1:])
    return halves.swapaxes(1, 2).reshape(values.shape)


def translate(stem: str, ending: str) -> str:
    """Return GGUF's name of a tensor."""
    if stem in TOP:
        return f"{TOP[stem]}.{ending}"
    _, _, layer, leaf = stem.split(".", 3)
    return f"blk.{layer}.{LEAVES[leaf]}.{ending}"


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:  # int, float, str or bool
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    else:
        writer.add_string(key, value)


def _add_tokenizer(
    writer: gguf.GGUFWriter, folder: Path, config: dict[str, Any], pre: str, adds_bos: bool
) -> None:
    tree = json.loads((folder / "tokenizer.json").read_text())
    model = tree["model"]
    special = {token["id"] for token in tree["added_tokens"] if token["special"]}
    vocabulary = sorted(model["vocab"].items(), key=lambda item: item[1])
    tokens = [token for token, _ in vocabulary]
    is_sentence_piece = bool(model["byte_fallback"])
    types = []
    for token, token_id in vocabulary:
        if token == "<unk>":
            types.append(gguf.TokenType.UNKNOWN)
        elif token_id in special:
            types.append(gguf.TokenType.CONTROL)
        elif is_sentence_piece and token.startswith("<0x"):
            types.append(gguf.TokenType.BYTE)
        else:
            types.append(gguf.TokenType.NORMAL)
    # Padding of the embedding, as conversion writes it.
    for token_id in range(len(tokens), config["vocab_size"]):
        tokens.append(f"[PAD{token_id}]")
        types.append(gguf.TokenType.UNUSED)
    writer.add_tokenizer_model("llama" if is_sentence_piece else "gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    merges = [pair if isinstance(pair, list) else pair.split(" ") for pair in model["merges"]]
    if is_sentence_piece:
        rank = {left + right: index for index, (left, right) in reversed(list(enumerate(merges)))}
        writer.add_token_scores([-float(rank.get(token, 0)) for token in tokens])
        writer.add_unk_token_id(0)
    else:
        writer.add_tokenizer_pre(pre)
        writer.add_token_merges([" ".join(pair) for pair in merges])
    if config["bos_token_id"] is not None:
        writer.add_bos_token_id(config["bos_token_id"])
        writer.add_add_bos_token(adds_bos)
    writer.add_eos_token_id(config["eos_token_id"])
    template = folder / "chat_template.jinja"
    if template.is_file():
        writer.add_chat_template(template.read_text())
