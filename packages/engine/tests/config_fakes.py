"""Facts of checkpoints and machines for the configuration tests, and a small conf folder of their own."""

from __future__ import annotations

from pathlib import Path

from engine.types.info import CheckpointFacts, DeviceInfo, PlatformInfo

GIB = 1024**3

LLAMA_CONFIG = {
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "hidden_size": 576,
    "intermediate_size": 1536,
}

OPTION_FILES = {
    "config": "defaults:\n- _self_\n- cache: default\n- loader: auto\n- tool_parser: auto\n"
    "tp: null\npreset: null\nparallel:\n  tensor: ${tp}\n",
    "cache/default": "block_size: null\ndtype: auto\n",
    "loader/auto": "_target_: auto\n",
    "loader/dummy": "_target_: engine.loader.dummy.DummyLoader\nscale: 0.1\n",
    "tool_parser/auto": "_target_: auto\n",
    "tool_parser/hermes": "_target_: parsers.tool.hermes.Hermes\n",
    "model/llama": "# Llama.\nfamily: llama\narchitectures: [LlamaForCausalLM]\n",
    "model/small": "# A small one.\ndefaults:\n- llama\n"
    "- override /tool_parser@_global_.tool_parser: hermes\n- _self_\npath: /data/small\n",
    "preset/latency": "# @package _global_\n# Quick.\npreset: latency\ncache:\n  block_size: 8\n",
}


def write_conf(folder: Path, **changes: str) -> Path:
    """Write the small conf folder, with some files changed or added (`model__x` is `model/x`)."""
    files = OPTION_FILES | {name.replace("__", "/"): text for name, text in changes.items()}
    for name, text in files.items():
        path = folder / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


def make_facts(**changes: object) -> CheckpointFacts:
    """Facts of a GGUF checkpoint in the shape of SmolLM2 135M; `config` entries are merged."""
    values: dict[str, object] = {
        "format": "gguf",
        "path": "/models/small.gguf",
        "architecture": "LlamaForCausalLM",
        "config": LLAMA_CONFIG,
        "dtype": "Q4_1",
        "quantization": "gguf",
        "vocab_size": 49152,
        "max_position_embeddings": 8192,
    }
    config = {**LLAMA_CONFIG, **changes.pop("config", {})}  # type: ignore[dict-item]
    return CheckpointFacts(**{**values, **changes, "config": config})  # type: ignore[arg-type]


def make_cpu(*features: str, num_cpus: int = 2) -> PlatformInfo:
    """A machine without an accelerator."""
    return PlatformInfo(
        kind="cpu",
        devices=[DeviceInfo(name="some cpu", memory_bytes=16 * GIB)],
        num_cpus=num_cpus,
        host_memory_bytes=16 * GIB,
        cpu_features=list(features),
    )


def make_cuda(capability: tuple[int, int] = (9, 0)) -> PlatformInfo:
    """A machine with one NVIDIA GPU."""
    device = DeviceInfo(name="some gpu", memory_bytes=80 * GIB, compute_capability=capability)
    return PlatformInfo(kind="cuda", devices=[device], num_cpus=16, host_memory_bytes=128 * GIB)
