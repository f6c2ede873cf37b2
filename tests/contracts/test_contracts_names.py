"""Names that say nothing are not used, and the tree speaks of the project alone."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MEANINGLESS = {"utils", "util", "helpers", "helper", "common", "misc", "base_impl", "stuff"}

# Put together from pieces, so that this file does not hold what it looks for.
FORBIDDEN = [
    "/wo" + "rk/",
    "sha" + "red/",
    "/ro" + "ot/",
    "house" + ".md",
    "download." + "pytorch",
    "pypi" + ".org",
    "pythonhosted" + ".org",
    "co-authored" + "-by",
]
TEXT_SUFFIXES = {".py", ".md", ".yaml", ".toml", ".txt", ".cpp", ".h", ".json", ".html", ""}


def tracked_files() -> list[Path]:
    """Files of the project: what git tracks or would."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return [path for name in listed.stdout.splitlines() if (path := ROOT / name).is_file()]


def test_modules_are_named_for_a_concept() -> None:
    named = [path for path in tracked_files() if path.suffix == ".py"]
    bad = [str(path.relative_to(ROOT)) for path in named if {path.stem, *path.parent.parts} & MEANINGLESS]
    assert bad == []


def test_test_files_have_names_of_their_own() -> None:
    names = Counter(path.name for path in tracked_files() if path.name.startswith("test_"))
    assert [name for name, count in names.items() if count > 1] == []


@pytest.mark.parametrize("phrase", FORBIDDEN)
def test_no_file_speaks_of_where_it_was_written(phrase: str) -> None:
    bad = [
        str(path.relative_to(ROOT))
        for path in tracked_files()
        if path.suffix in TEXT_SUFFIXES
        and phrase in path.read_text(encoding="utf-8", errors="replace").lower()
    ]
    assert bad == []


def test_source_is_ascii() -> None:
    sources = [p for p in tracked_files() if p.suffix in (".py", ".cpp", ".h", ".yaml", ".toml", ".md")]
    assert [str(path.relative_to(ROOT)) for path in sources if not path.read_bytes().isascii()] == []


def test_todo_names_its_condition() -> None:
    pattern = re.compile(r"\b(FIXME|XXX|HACK)\b|TODO(?!: when )")
    own = Path(__file__).name
    sources = [p for p in tracked_files() if p.suffix in (".py", ".cpp", ".h") and p.name != own]
    assert [str(p.relative_to(ROOT)) for p in sources if pattern.search(p.read_text(encoding="utf-8"))] == []
