"""Documents are true where that can be checked: paths exist, make targets exist, the public is described."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md")),
    *sorted(ROOT.glob("packages/*/README.md")),
]
SOURCES = sorted(ROOT.glob("packages/*/src/**/*.py"))
CONFIG_MODULES = [
    *sorted((ROOT / "packages/engine/src/engine/config").glob("*.py")),
    ROOT / "packages/server/src/server/settings.py",
]

# Where a document may start a path; a bare file name is looked for anywhere in the tree.
BASES = [ROOT, *ROOT.glob("packages/*"), *ROOT.glob("packages/*/src"), *ROOT.glob("packages/*/src/*")]
PATH_SUFFIXES = (".py", ".yaml", ".toml", ".md", ".txt", ".cpp", ".h")


def paths_in(text: str) -> list[str]:
    """Words in backquotes, or in a captioned tree, that look like files or folders of this repository."""
    quoted = re.findall(r"`([A-Za-z_.][\w./{},*-]*)`", text)
    return [word for word in quoted if word.endswith((*PATH_SUFFIXES, "/")) and word not in PATH_SUFFIXES]


def exists(path: str) -> bool:
    if any(letter in path for letter in "{*"):
        pattern = re.sub(r"\{[^}]*\}", "*", path)
        return any(list(base.glob(pattern)) for base in BASES)
    if any((base / path).exists() for base in BASES):
        return True
    return "/" not in path and any(ROOT.glob(f"packages/**/{path}"))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_path_named_exists(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    # What a reader types as an example of their own is no path of ours.
    missing = [
        path for path in paths_in(text) if not path.startswith(("/", ".venv", "x.")) and not exists(path)
    ]
    assert missing == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_make_target_named_exists(document: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = set(
        re.findall(r"`?make ([a-z][a-z-]+)", "\n".join(code_in(document.read_text(encoding="utf-8"))))
    )
    assert named - targets == set()


def test_architecture_stays_short() -> None:
    assert len((ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8").splitlines()) <= 250


def test_every_layer_of_the_contract_stands_in_the_architecture() -> None:
    contract = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (layers,) = re.findall(
        r'containers = \["engine"\]\nexhaustive = true\nlayers = \[(.*?)\]', contract, re.DOTALL
    )
    architecture = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    for line in re.findall(r'"([^"]+)"', layers):
        for layer in line.split(" | "):
            assert re.search(rf"^{layer}\b|\| {layer}\b", architecture, re.MULTILINE), layer


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: str(path.relative_to(ROOT / "packages")))
def test_module_and_its_public_names_are_described(source: Path) -> None:
    module = ast.parse(source.read_text(encoding="utf-8"))
    undescribed = [] if ast.get_docstring(module) else ["the module"]
    for node in module.body:
        if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if not node.name.startswith("_") and not ast.get_docstring(node):
            undescribed.append(node.name)
    assert undescribed == []


@pytest.mark.parametrize("source", CONFIG_MODULES, ids=lambda path: path.stem)
def test_every_configuration_field_has_its_sentence(source: Path) -> None:
    module = ast.parse(source.read_text(encoding="utf-8"))
    bare = []
    for node in module.body:
        if not (isinstance(node, ast.ClassDef) and node.name.endswith("Config")):
            continue
        for field, following in zip(node.body, [*node.body[1:], None], strict=True):
            if isinstance(field, ast.AnnAssign) and not is_sentence(following):
                bare.append(f"{node.name}.{ast.unparse(field.target)}")
    assert [name for name in bare if not name.startswith("EngineConfig.")] == []


def is_sentence(node: ast.stmt | None) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def code_in(text: str) -> list[str]:
    """Code blocks and words in backquotes."""
    return re.findall(r"```.*?```", text, re.DOTALL) + re.findall(r"`[^`\n]+`", text)
