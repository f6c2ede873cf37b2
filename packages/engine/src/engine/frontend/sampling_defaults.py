"""Sampling defaults that a checkpoint brings along in its `generation_config.json`.

They fill only what a caller left unsaid: the server lays the caller's fields over `build_default_fields`, and
`LLM` uses them where no `SamplingParams` are given. `max_new_tokens` is no default field but a ceiling for
requests that leave `max_tokens` open. A value that `SamplingParams` would refuse is left out with a warning.
"""

from __future__ import annotations

import logging
from typing import Any

from engine.config.engine_config import EngineConfig
from engine.types.errors import InvalidRequestError
from engine.types.sampling_params import SamplingParams

logger = logging.getLogger(__name__)

_FIELDS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


def build_default_fields(config: EngineConfig) -> dict[str, Any]:  # values of SamplingParams fields
    """Return the checkpoint's defaults as `SamplingParams` keyword arguments; empty unless `auto`."""
    defaults: dict[str, Any] = {}
    for name in _FIELDS:
        value = _read(config, name)
        if value is None:
            continue
        try:
            SamplingParams(**{name: value})
        except InvalidRequestError as error:
            logger.warning("generation_config: %s is left out: %s", name, error)
        else:
            defaults[name] = value
    return defaults


def get_max_new_tokens(config: EngineConfig) -> int | None:
    """Return the checkpoint's ceiling for requests that leave `max_tokens` open, if it has one."""
    value = _read(config, "max_new_tokens")
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    return None


def _read(config: EngineConfig, name: str) -> Any:  # JSON of the checkpoint
    if config.sampling.generation_config != "auto" or config.checkpoint is None:
        return None
    return config.checkpoint.generation_config.get(name)
