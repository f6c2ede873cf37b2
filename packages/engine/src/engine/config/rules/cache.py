"""The KV cache and the attention backend that reads it."""

from __future__ import annotations

from dataclasses import replace

from engine.config.attention_choice import AttentionNeeds, choose_attention, find_refusal
from engine.config.cache import CacheConfig
from engine.config.component import ComponentConfig
from engine.config.compose import Composition
from engine.config.model_shape import ModelShape
from engine.config.ranges import DtypeName
from engine.config.rules.choice import get_option
from engine.config.rules.record import Record
from engine.types.errors import ConfigError
from engine.types.info import PlatformInfo

# Tokens per block. On a CPU small blocks waste little; on a GPU larger ones keep the table short.
_BLOCK_SIZE = {"cpu": 16, "cuda": 64, "rocm": 64}
_DEVICE_MEMORY_FRACTION = 0.9


def resolve_block_size(cache: CacheConfig, kind: str, record: Record) -> int:
    """Return the tokens per block."""
    if cache.block_size is not None:
        return cache.block_size
    record.decide("cache.block_size", _BLOCK_SIZE[kind], None, f"the usual size on {kind}")
    return _BLOCK_SIZE[kind]


def resolve_attention(
    composition: Composition, shape: ModelShape, kind: str, dtype: str, block_size: int, record: Record
) -> ComponentConfig:
    """Return the attention backend, given or chosen by capability."""
    needs = AttentionNeeds(
        platform=kind,
        dtype=dtype,
        head_size=shape.head_size,
        block_size=block_size,
        sliding_window=shape.has_sliding_window,
        soft_cap=shape.has_soft_cap,
    )
    options = composition.attention_options
    given = composition.engine.attention
    if given.option == "auto":
        choice = choose_attention(options, needs)
        refused = "; ".join(f"not {name}: {reason}" for name, reason in choice.refused.items())
        why = f"highest priority of what fits on {kind} with {dtype}, head size {shape.head_size}"
        record.decide("attention", choice.option.name, "auto", f"{why}; {refused}" if refused else why)
        return get_option(composition, "attention", choice.option.name)
    for option in options:
        if option.name == given.option and (reason := find_refusal(option.capabilities, needs)):
            raise ConfigError(
                f"attention={given.option!r} cannot serve this model here: it {reason}; use attention=auto.",
                key="attention",
            )
    return given


def resolve_cache(
    cache: CacheConfig, dtype: DtypeName, block_size: int, platform: PlatformInfo, record: Record
) -> CacheConfig:
    """Return the cache's settings with dtype, block size and memory share decided."""
    if cache.dtype not in ("auto", dtype):
        raise ConfigError(
            f"cache.dtype={cache.dtype!r} differs from model.dtype={dtype!r}, and no attention backend "
            "converts between them; use cache.dtype=auto.",
            key="cache.dtype",
        )
    if cache.dtype == "auto":
        record.decide("cache.dtype", dtype, "auto", "that of the model")
    if cache.memory_bytes is not None and cache.memory_fraction is not None:
        record.ignore("cache.memory_fraction", cache.memory_fraction, "cache.memory_bytes overrides it")
    if not cache.enable_prefix_caching and cache.hash_seed is not None:
        record.ignore("cache.hash_seed", "(set)", "cache.enable_prefix_caching is off")
    if cache.enable_prefix_caching and cache.hash_seed is None:
        record.decide("cache.hash_seed", None, None, "the engine core draws one at start")
    fraction = cache.memory_fraction
    if fraction is None and cache.memory_bytes is None:
        if platform.kind == "cpu":
            why = "at start: 40% of the memory free then, at most 4 GiB and what the requests can use"
            record.decide("cache.memory_bytes", None, None, why)
        else:
            fraction = _DEVICE_MEMORY_FRACTION
            record.decide("cache.memory_fraction", fraction, None, f"the usual share on {platform.kind}")
    return replace(cache, dtype=dtype, block_size=block_size, memory_fraction=fraction)
