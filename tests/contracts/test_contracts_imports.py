"""Import directions: the written contracts, and fresh interpreters as the second witness."""

from __future__ import annotations

import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "packages"

CONTROL_PLANE = (
    "types",
    "config",
    "kv_cache",
    "scheduler",
    "core",
    "frontend",
    "observability",
    "entrypoints",
)
TORCH_FREE_MODULES = ("executor.base", "platforms.detect", "platforms.threads", "loader.source")
HEAVY = ("torch", "triton", "transformers")


def run_python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def modules_under(package: str, folder: Path) -> list[str]:
    """Dotted names of a package's modules, found without importing any."""
    found = [package]
    for module in pkgutil.iter_modules([str(folder)]):
        name = f"{package}.{module.name}"
        found += modules_under(name, folder / module.name) if module.ispkg else [name]
    # Running as a program is what a __main__ module does when it is imported.
    return [name for name in found if not name.endswith("__main__")]


def test_import_contracts_hold() -> None:
    code = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


def test_control_plane_imports_without_torch() -> None:
    engine = SOURCES / "engine" / "src" / "engine"
    names = [name for part in CONTROL_PLANE for name in modules_under(f"engine.{part}", engine / part)]
    names += ["engine", *(f"engine.{name}" for name in TORCH_FREE_MODULES)]
    assert heavy_after_importing(names) == "[]"


def test_server_imports_without_torch() -> None:
    names = modules_under("server", SOURCES / "server" / "src" / "server")
    assert heavy_after_importing(names) == "[]"


def test_parsers_need_no_third_package_but_msgspec() -> None:
    names = modules_under("parsers", SOURCES / "parsers" / "src" / "parsers")
    code = (
        "import importlib, sys\n"
        "before = set(sys.modules)\n"
        f"for name in {names!r}: importlib.import_module(name)\n"
        "new = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        "print(sorted(new - set(sys.stdlib_module_names) - {'parsers', 'msgspec', 'typing_extensions'}))"
    )
    assert run_python(code) == "[]"


@pytest.mark.parametrize("package", ["engine", "kernels", "parsers", "server"])
def test_package_itself_is_cheap_to_import(package: str) -> None:
    code = (
        f"import sys, {package}\n"
        "print(sorted({'torch', 'numpy', 'hydra', 'fastapi', 'msgspec'} & set(sys.modules)))"
    )
    assert run_python(code) in ("[]", "['msgspec']")


def heavy_after_importing(names: list[str]) -> str:
    """Which heavy packages a fresh interpreter holds after importing these modules, and who brought each."""
    code = (
        "import importlib, sys\n"
        "found = []\n"
        f"for name in {names!r}:\n"
        "    importlib.import_module(name)\n"
        f"    new = [heavy for heavy in {HEAVY!r} if heavy in sys.modules and heavy not in str(found)]\n"
        "    found += [f'{name} -> {heavy}' for heavy in new]\n"
        "print(found)"
    )
    return run_python(code)
