"""Pagoda's engine: load a model, run prompts, stream tokens.

Public names are imported on first use, so that `import engine` costs nothing and never loads torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.entrypoints.async_llm import AsyncLLM
    from engine.entrypoints.llm import LLM
    from engine.types.errors import (
        CheckpointError,
        ConfigError,
        EngineDeadError,
        EngineDrainingError,
        EngineError,
        InvalidRequestError,
        QueueFullError,
        RequestFailedError,
    )
    from engine.types.outputs import CompletionOutput, Logprob, RequestOutput
    from engine.types.sampling_params import RequestOutputKind, SamplingParams

__all__ = [
    "LLM",
    "AsyncLLM",
    "CheckpointError",
    "CompletionOutput",
    "ConfigError",
    "EngineDeadError",
    "EngineDrainingError",
    "EngineError",
    "InvalidRequestError",
    "Logprob",
    "QueueFullError",
    "RequestFailedError",
    "RequestOutput",
    "RequestOutputKind",
    "SamplingParams",
]

_MODULES = {
    "LLM": "engine.entrypoints.llm",
    "AsyncLLM": "engine.entrypoints.async_llm",
    "CompletionOutput": "engine.types.outputs",
    "Logprob": "engine.types.outputs",
    "RequestOutput": "engine.types.outputs",
    "RequestOutputKind": "engine.types.sampling_params",
    "SamplingParams": "engine.types.sampling_params",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES.get(name, "engine.types.errors")), name)


def __dir__() -> list[str]:
    return sorted(__all__)
