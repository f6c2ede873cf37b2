"""Facts that travel: the machine, the checkpoint, the running engine. Plain data, no torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceInfo:
    """One accelerator, or the host's CPU as a device."""

    name: str
    memory_bytes: int
    compute_capability: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlatformInfo:
    """What the machine is, read without torch (NVML, /proc)."""

    kind: str
    """`cpu`, `cuda` or `rocm`."""
    devices: list[DeviceInfo]
    num_cpus: int
    """Usable cores: affinity and cgroup limits applied."""
    host_memory_bytes: int
    """Total, cgroup limit applied."""
    cpu_features: list[str] = field(default_factory=list)
    """Lower-case flags that matter: `avx2`, `avx512f`, `avx512_bf16`, `amx_bf16`, ..."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFacts:
    """What a checkpoint says of itself, read without loading a weight.

    `config` has the keys of a Hugging Face `config.json`; for GGUF they are translated from its metadata.
    """

    format: str
    """`safetensors`, `gguf` or `config` (a folder with config.json alone, for dummy weights)."""
    path: str
    """Local folder, or local .gguf file."""
    architecture: str
    """`LlamaForCausalLM`, ...; for GGUF the equivalent of `general.architecture`."""
    config: dict[str, Any]  # JSON of the checkpoint: its keys are the checkpoint author's
    weight_files: list[str] = field(default_factory=list)
    """File names relative to `path` (for GGUF: the file itself)."""
    weight_bytes: int = 0
    dtype: str | None = None
    """Stored dtype of the bulk of the weights (`bfloat16`, ...; `Q4_1`, ... for GGUF)."""
    quantization: str | None = None
    """`gguf`, or `quantization_config.quant_method`; None for plain weights."""
    vocab_size: int = 0
    max_position_embeddings: int = 0
    eos_token_ids: list[int] = field(default_factory=list)
    bos_token_id: int | None = None
    generation_config: dict[str, Any] = field(default_factory=dict)  # as above
    has_tokenizer: bool = False
    chat_template: str | None = None


class EngineInfo(msgspec.Struct, frozen=True, array_like=True):
    """What a running core tells its clients."""

    max_model_len: int
    vocab_size: int
    num_blocks: int
    block_size: int
    kv_cache_bytes: int
    max_num_seqs: int
    pid: int
    startup_phases_s: dict[str, float] = {}
    """Seconds per finished phase of start-up."""
