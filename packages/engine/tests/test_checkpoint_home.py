"""Pagoda's own folder: private, and refused where it is not the user's."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from engine.config.home import open_home
from engine.types.errors import ConfigError


def test_folders_are_made_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGODA_HOME", str(tmp_path / "a" / "b"))
    folder = open_home("models", "x")
    assert folder == tmp_path / "a" / "b" / "models" / "x"
    for path in (folder, folder.parent, folder.parent.parent):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert open_home() == tmp_path / "a" / "b"


def test_default_is_under_the_users_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PAGODA_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert open_home() == tmp_path / ".cache" / "pagoda"


def test_own_folder_that_others_can_enter_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGODA_HOME", str(tmp_path))
    tmp_path.chmod(0o755)
    open_home()
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o700


def test_folder_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGODA_HOME", str(tmp_path))
    uid = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: uid + 1)
    with pytest.raises(ConfigError, match=r"belongs to another user.*PAGODA_HOME"):
        open_home()


def test_place_that_cannot_be_a_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("PAGODA_HOME", str(tmp_path / "file"))
    with pytest.raises(ConfigError, match="set PAGODA_HOME"):
        open_home()
