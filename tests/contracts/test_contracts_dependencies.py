"""What is imported is declared, and what is declared is pinned."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = sorted(path.parent for path in ROOT.glob("packages/*/pyproject.toml"))
OWN = {"engine", "server", "kernels", "parsers", "conf"}


def declared(manifest: Path) -> set[str]:
    """Distributions that a pyproject.toml asks for, normalized."""
    tables = tomllib.loads(manifest.read_text(encoding="utf-8"))
    lists = [tables.get("project", {}).get("dependencies", []), *tables.get("dependency-groups", {}).values()]
    return {re.split(r"[^A-Za-z0-9-]", entry)[0].lower() for entries in lists for entry in entries}


def imported(sources: Iterable[Path]) -> set[str]:
    """Top-level names that files import and that neither we nor the standard library hold."""
    paths = list(sources)
    found = {name.partition(".")[0] for path in paths for name in import_names(path)}
    # Test files import the modules beside them by bare name.
    beside = {path.stem for folder in {path.parent for path in paths} for path in folder.glob("*.py")}
    return found - OWN - beside - set(sys.stdlib_module_names)


def import_names(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module


def undeclared(names: set[str], distributions: set[str]) -> list[str]:
    providers = importlib.metadata.packages_distributions()
    normalized = {
        name: {re.sub(r"[-_.]+", "-", d).lower() for d in providers.get(name, [])} for name in names
    }
    return sorted(name for name in names if not normalized[name] & distributions)


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.name)
def test_package_declares_what_it_imports(package: Path) -> None:
    names = imported(package.glob("src/**/*.py"))
    # kernels brings torch's own companion on a GPU machine.
    names -= {"triton"}
    assert undeclared(names, declared(package / "pyproject.toml")) == []


def test_workspace_declares_what_tests_import() -> None:
    distributions = declared(ROOT / "pyproject.toml")
    for package in PACKAGES:
        distributions |= declared(package / "pyproject.toml")
    tests = [ROOT / "conftest.py", *ROOT.glob("tests/**/*.py"), *ROOT.glob("packages/*/tests/**/*.py")]
    assert undeclared(imported(tests), distributions) == []


def test_every_dependency_is_pinned() -> None:
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    pinned = set(re.findall(r"^([a-z0-9-]+)==", text, re.MULTILINE))
    wanted = declared(ROOT / "pyproject.toml")
    for package in PACKAGES:
        wanted |= declared(package / "pyproject.toml")
    assert {name for name in wanted if not name.startswith("pagoda-")} - pinned == set()
