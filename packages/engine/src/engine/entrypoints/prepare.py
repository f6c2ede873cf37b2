"""From a composed configuration to a resolved one: fetch the checkpoint, read its facts and the machine's.

The only place where composition, sources, facts and resolution meet; every entry point comes through here.
Nothing of it touches torch or a weight.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from engine.config.checkpoint import architecture_of_path, read_facts
from engine.config.compose import Composition
from engine.config.engine_config import EngineConfig
from engine.config.model import ModelConfig
from engine.config.resolve import resolve
from engine.loader.source import fetch
from engine.platforms.detect import detect
from engine.types.progress import ProgressCallback


def prepare(
    composition: Composition,
    *,
    entrypoint: Literal["offline", "async"],
    on_progress: ProgressCallback | None = None,
) -> EngineConfig:
    """Return the configuration with every "auto" decided; may download the checkpoint.

    Args:
        composition: what `compose` returned.
        entrypoint: `offline` for `LLM`, `async` for `AsyncLLM`; decides the transport.
        on_progress: hears of the download.

    Raises:
        ConfigError: a value that does not fit the checkpoint or the machine.
        CheckpointError: the checkpoint cannot be found or read.
    """
    model = composition.engine.model
    path = fetch(model, on_progress)
    facts = read_facts(path, tokenizer=None if model.tokenizer is None else Path(model.tokenizer))
    return resolve(composition, facts, detect(), entrypoint=entrypoint)


def architecture_of(source: ModelConfig) -> str | None:
    """Return the architecture of a checkpoint; of a hub id only `config.json` is fetched.

    Args:
        source: `path`, and what pins it.

    Raises:
        CheckpointError: there is no such checkpoint, or it does not say its architecture.
    """
    return architecture_of_path(fetch(source, None, config_only=True))
