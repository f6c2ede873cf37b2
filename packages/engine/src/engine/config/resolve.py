"""From "auto" to values: a pure function of the composition, the checkpoint's facts and the machine's.

Decides every open value once, writes down why, and refuses what cannot work before a byte of the model is
loaded; the single questions stand in `rules`. It opens no file and asks no device. How much memory the cache
gets is left to the worker, who alone knows what the weights left over.
"""

from __future__ import annotations

from dataclasses import replace

from engine.config.compose import Composition
from engine.config.engine_config import EngineConfig
from engine.config.model_shape import read_shape
from engine.config.rules import cache, checkpoint, parallel, platform, scheduler, transport
from engine.config.rules.record import Record
from engine.config.rules.transport import Entrypoint
from engine.types.info import CheckpointFacts, PlatformInfo


def resolve(
    composition: Composition,
    facts: CheckpointFacts,
    info: PlatformInfo,
    *,
    entrypoint: Entrypoint,
) -> EngineConfig:
    """Return the configuration with every open value decided, and why.

    Args:
        info: what the machine is; a configuration may ask for its CPU though it has a GPU.
        entrypoint: `offline` for `LLM`, `async` for `AsyncLLM` and the server.

    Raises:
        ConfigError: a value cannot work with this checkpoint on this machine.
        CheckpointError: the checkpoint's own configuration is broken.
    """
    given = composition.engine
    record = Record()
    shape = read_shape(facts)
    checkpoint.check_architecture(given.model, facts, composition.families)
    platform_option, info = platform.resolve_platform(composition, info, record)
    sizes = parallel.resolve_parallel(given.parallel, shape, record)
    dtype = platform.resolve_dtype(given.model, info, record)
    block_size = cache.resolve_block_size(given.cache, info.kind, record)
    max_model_len = checkpoint.resolve_max_model_len(given.model, given.cache, facts, block_size, record)
    checkpoint.warn_unused_source_settings(given.model, facts, record)
    mode = platform.resolve_compilation(given.compilation.mode, record)
    return replace(
        given,
        model=replace(given.model, dtype=dtype, max_model_len=max_model_len),
        parallel=sizes,
        cache=cache.resolve_cache(given.cache, dtype, block_size, info, record),
        scheduler=scheduler.resolve_scheduler(given.scheduler, max_model_len, info, record),
        compilation=replace(given.compilation, mode=mode),
        platform=platform_option,
        attention=cache.resolve_attention(composition, shape, info.kind, dtype, block_size, record),
        quantization=checkpoint.resolve_quantization(composition, facts, dtype, record),
        loader=checkpoint.resolve_loader(composition, facts, record),
        executor=parallel.resolve_executor(composition, sizes, record),
        transport=transport.resolve_transport(composition, entrypoint, record),
        checkpoint=facts,
        platform_info=info,
        reasons=record.reasons,
        warnings=record.warnings,
    )
