"""Checkpoints from the Hugging Face hub, through its own client and into its own cache.

Only what is read is fetched: safetensors, JSON and templates at the top of the repository. Pickled weights,
code and other formats stay where they are.
"""

from __future__ import annotations

from pathlib import Path

from huggingface_hub import hf_hub_download, snapshot_download
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from engine.types.errors import CheckpointError

ALLOWED = ["*.safetensors", "*.json", "*.jinja"]
"""Patterns of what is fetched."""
IGNORED = ["*/*", "consolidated*"]
"""Folders hold other formats; `consolidated` files hold the same weights under other names."""


def fetch_from_hub(
    repo_id: str, *, revision: str | None = None, file: str | None = None, config_only: bool = False
) -> Path:
    """Return the local folder of a repository's checkpoint, or its .gguf file.

    Args:
        repo_id: `org/name`.
        revision: branch, tag or commit; None is the repository's default. It covers every file.
        file: a .gguf file of the repository, fetched alone.
        config_only: fetch config.json alone and return its folder.

    Raises:
        CheckpointError: no such repository, revision or file; no access; no connection and not in the cache.
    """
    where = repo_id if revision is None else f"{repo_id} at revision {revision!r}"
    if file is not None and not file.endswith(".gguf"):
        raise CheckpointError(f"model.file={file!r} is no .gguf file; leave it out to take all of {repo_id}.")
    try:
        if file is not None:
            return Path(hf_hub_download(repo_id, file, revision=revision))
        if config_only:
            return Path(hf_hub_download(repo_id, "config.json", revision=revision)).parent
        return Path(
            snapshot_download(repo_id, revision=revision, allow_patterns=ALLOWED, ignore_patterns=IGNORED)
        )
    except GatedRepoError as error:
        raise CheckpointError(
            f"{where} needs access rights; ask for them on the hub and set HF_TOKEN."
        ) from error
    except RepositoryNotFoundError as error:
        raise CheckpointError(
            f"{where} is no repository on the hub and no local folder, or it is private; check the spelling, "
            "or set HF_TOKEN."
        ) from error
    except RevisionNotFoundError as error:
        raise CheckpointError(f"{where} has no such revision; check model.revision.") from error
    except LocalEntryNotFoundError as error:
        raise CheckpointError(
            f"{where} is neither a local folder nor in the hub's cache, and the hub cannot be reached; give "
            "a local path, or fetch it where there is a network."
        ) from error
    except EntryNotFoundError as error:
        wanted = file or "config.json"
        raise CheckpointError(
            f"{where} has no {wanted}; for a repository of .gguf files set model.file to one of them."
        ) from error
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{where} cannot be fetched from the hub: {error}") from error
