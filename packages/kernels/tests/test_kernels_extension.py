"""The compiled library: where it is kept, what happens to a broken one, to two builders, without a compiler.

Each test that builds does so in a folder of its own, in fresh processes, since a library is loaded once.
"""

from __future__ import annotations

import logging
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from kernels.cpu import code_folder, extension

_USE = """
import logging; logging.basicConfig(level="WARNING")
import torch, kernels
print(kernels.rms_norm(torch.ones(2, 4), torch.ones(4), 0.0).sum().item())
print(torch._C._dispatch_has_kernel_for_dispatch_key("pagoda::rms_norm", "CPU"))
"""


def _start(home: Path, **environment: str) -> subprocess.Popen[str]:
    env = {**os.environ, "PAGODA_HOME": str(home), **environment}
    return subprocess.Popen(
        [sys.executable, "-c", _USE], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def _finish(process: subprocess.Popen[str]) -> tuple[list[str], str]:
    out, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    return out.split(), errors


@pytest.fixture(scope="module")
def built_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that two processes at once have built the library in."""
    if shutil.which("g++") is None:
        pytest.skip("no compiler")
    home = tmp_path_factory.mktemp("code") / "home"
    for process in [_start(home), _start(home)]:
        assert _finish(process)[0] == ["8.0", "True"]
    return home


@pytest.mark.slow
def test_two_processes_build_one_private_library(built_home: Path) -> None:
    libraries = list(built_home.rglob("*.so"))
    assert len(libraries) == 1
    assert code_folder.read_verified(libraries[0])
    assert sorted(path.name for path in libraries[0].parent.iterdir()) == [
        "pagoda_cpu.so",
        "pagoda_cpu.so.sha256",
    ]
    for folder in (built_home, built_home / "extensions", libraries[0].parent):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.mark.slow
def test_a_broken_library_is_built_anew(built_home: Path) -> None:
    (library,) = built_home.rglob("*.so")
    library.write_bytes(library.read_bytes()[:10_000])
    assert _finish(_start(built_home))[0] == ["8.0", "True"]
    assert code_folder.read_verified(library)


def test_a_file_counts_only_with_its_own_checksum(tmp_path: Path) -> None:
    path = tmp_path / "code.so"
    assert not code_folder.read_verified(path)
    (tmp_path / "new").write_bytes(b"machine code")
    code_folder.store_verified(tmp_path / "new", path)
    assert code_folder.read_verified(path)
    assert sorted(tmp_path.iterdir()) == [path, tmp_path / "code.so.sha256"]
    path.write_bytes(b"machine c0de")
    assert not code_folder.read_verified(path)
    path.write_bytes(b"machine code")
    (tmp_path / "code.so.sha256").unlink()
    assert not code_folder.read_verified(path)


def test_without_a_compiler_the_reference_serves_with_one_warning(tmp_path: Path) -> None:
    out, errors = _finish(_start(tmp_path / "home", PATH=str(tmp_path)))
    assert out == ["8.0", "False"]
    assert errors.count("reference path") == 1
    assert "no C++ compiler" in errors


def test_a_compiler_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    broken = tmp_path / "bin" / "g++"
    broken.parent.mkdir()
    broken.write_text('#!/bin/sh\n[ "$1" = --version ] && exit 0\necho no such flag >&2\nexit 1\n')
    broken.chmod(0o755)
    out, errors = _finish(_start(tmp_path / "home", PATH=f"{broken.parent}:/bin:/usr/bin"))
    assert out == ["8.0", "False"]
    assert "no such flag" in errors
    assert not list((tmp_path / "home").rglob("*.o"))
    assert not list((tmp_path / "home").rglob("*.so"))


def test_a_folder_that_is_not_ours_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "elsewhere"
    target.mkdir()
    (tmp_path / "home").symlink_to(target)
    monkeypatch.setenv("PAGODA_HOME", str(tmp_path / "home"))
    with pytest.raises(code_folder.FolderError, match="PAGODA_HOME"):
        code_folder.prepare_code_folder("extensions")
    (tmp_path / "home").unlink()
    (tmp_path / "home").mkdir()
    monkeypatch.setattr(os, "getuid", lambda: os.geteuid() + 1)
    with pytest.raises(code_folder.FolderError, match="this user"):
        code_folder.prepare_code_folder("extensions")


def test_a_lax_folder_of_ours_is_made_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    home.mkdir()
    home.chmod(0o755)
    monkeypatch.setenv("PAGODA_HOME", str(home))
    assert code_folder.prepare_code_folder("extensions") == home / "extensions"
    assert stat.S_IMODE(home.stat().st_mode) == 0o700


def test_a_lock_that_is_held_is_waited_for_and_then_given_up(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with (
        code_folder.locked(path, timeout_s=1.0),
        pytest.raises(code_folder.FolderError, match="held"),
        code_folder.locked(path, timeout_s=0.1),
    ):
        pass
    with code_folder.locked(path, timeout_s=0.1):
        assert path.exists()


def test_the_key_follows_the_sources_and_the_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no compiler")
    before = extension.compute_key(compiler)
    assert before == extension.compute_key(compiler)
    monkeypatch.setattr(extension, "_FLAGS", [*extension._FLAGS, "-DX"])
    assert extension.compute_key(compiler) != before


def test_a_failure_is_logged_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(extension, "_is_loaded", None)
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with caplog.at_level(logging.WARNING):
        assert not extension.load()
        assert not extension.load()
    assert len(caplog.records) == 1
