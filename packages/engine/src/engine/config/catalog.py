"""What the conf folder offers: groups, their options, and the YAML of each option as plain data.

Reads YAML files only. It composes nothing, resolves no interpolation and imports no target, so that the argv
front, the help text and the reference can ask what exists before anything is decided.
"""

from __future__ import annotations

import difflib
import importlib.util
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from engine.config.component import OWN_PACKAGES, ComponentConfig
from engine.types.errors import ConfigError

# The C loader is some ten times faster and reads the same YAML; builds of PyYAML from source may lack it.
_YamlLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

Tree = dict[str, Any]  # a YAML mapping: scalars, lists and mappings
"""Plain data of a YAML file."""


@dataclass(frozen=True)
class Catalog:
    """The options under one conf folder; files are read once, when first asked for."""

    root: Path

    @cached_property
    def groups(self) -> dict[str, list[str]]:
        """Option names by group, both sorted."""
        folders = sorted(path for path in self.root.iterdir() if path.is_dir() and path.name[0] not in "._")
        found = {path.name: sorted(option.stem for option in path.glob("*.yaml")) for path in folders}
        return {group: options for group, options in found.items() if options}

    @cached_property
    def root_tree(self) -> Tree:
        """The root file without its defaults list."""
        tree = self._read("config")
        return {key: value for key, value in tree.items() if key != "defaults"}

    @cached_property
    def default_options(self) -> dict[str, str]:
        """The option that the root defaults list names, by group."""
        entries = [entry for entry in self._read("config").get("defaults", []) if isinstance(entry, dict)]
        return {str(group): str(option) for entry in entries for group, option in entry.items()}

    @cached_property
    def families(self) -> dict[str, str]:
        """Model option by the architecture that it serves, for options that name architectures themselves."""
        found: dict[str, str] = {}
        for option in self.groups.get("model", []):
            tree = self.read_option("model", option)
            for key in ("architectures", "gguf_architectures"):
                for architecture in tree.get(key) or ():
                    found.setdefault(str(architecture), option)
        return found

    def read_option(self, group: str, option: str) -> Tree:
        """Return an option's own YAML, as written."""
        return self._read(f"{group}/{option}")

    def read_config(self, config_path: str) -> Tree:
        """Return the YAML of a path relative to the folder, without suffix, as written."""
        return self._read(config_path)

    def describe(self, group: str, option: str) -> str:
        """Return the comment that opens an option's file, as one line."""
        lines: list[str] = []
        for line in (self.root / group / f"{option}.yaml").read_text(encoding="utf-8").splitlines():
            if not line.startswith("#"):
                break
            if not line.startswith("# @package"):
                lines.append(line.lstrip("# ").rstrip())
        return " ".join(lines)

    @cached_property
    def components(self) -> dict[str, dict[str, ComponentConfig]]:
        """Every option that is a component, by group and option; `auto` is none."""
        found: dict[str, dict[str, ComponentConfig]] = {}
        for group, options in self.groups.items():
            for option in options:
                tree = self.read_option(group, option)
                if "_target_" in tree:
                    found.setdefault(group, {})[option] = component_from_tree(group, option, tree, None)
        return found

    def capabilities(self, group: str, option: str) -> Tree:
        """Return what an option's YAML declares that it can do; empty where it declares nothing."""
        declared = self.read_option(group, option).get("capabilities")
        return dict(declared) if isinstance(declared, Mapping) else {}

    def _read(self, config_path: str) -> Tree:
        cache: dict[str, Tree] = self._files
        if config_path not in cache:
            cache[config_path] = _read_yaml(self.root / f"{config_path}.yaml")
        return cache[config_path]

    @cached_property
    def _files(self) -> dict[str, Tree]:
        return {}


def component_from_tree(
    group: str, option: str, tree: Mapping[str, Any], allowed: Sequence[str] | None = OWN_PACKAGES
) -> ComponentConfig:
    """Return the component that a composed or written node describes.

    Args:
        allowed: packages that its target may come from; None asks nothing, for options that are only listed.

    Raises:
        ConfigError: the target is no dotted name, or outside the allowed packages.
    """
    target = tree.get("_target_")
    is_open = target in ("auto", "")
    if not isinstance(target, str) or not (is_open or allowed is None or target.split(".")[0] in allowed):
        raise ConfigError(
            f"{group}._target_={target!r} is outside the allowed packages {', '.join(allowed or ())}; "
            "use a dotted name under one of them.",
            key=f"{group}._target_",
        )
    args = {key: value for key, value in tree.items() if key not in ("_target_", "capabilities", "defaults")}
    return ComponentConfig(target="" if target == "auto" else target, option=option, args=args)


def find_conf_dir() -> Path:
    """Return the folder of the installed conf package, without importing it.

    Raises:
        ConfigError: it is not installed, or another package of that name comes first on the import path.
    """
    spec = importlib.util.find_spec("conf")
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError("the package conf is not installed; install pagoda-conf.")
    folder = Path(next(iter(spec.submodule_search_locations)))
    if not (folder / "preset").is_dir() or not (folder / "config.yaml").is_file():
        raise ConfigError(
            f"{str(folder)!r} hides Pagoda's own conf package: the working directory stands first on the "
            "import path; run from another directory, or use the console script `pagoda`."
        )
    return folder


def nearest(name: str, known: Iterable[str], *, count: int = 3) -> str:
    """Return a sentence that names the closest valid names, or all of them where they are few."""
    names = sorted(set(known))
    close = difflib.get_close_matches(name, names, n=count, cutoff=0.6)
    if not close:
        # A key typed without, or under the wrong, group: compare the last parts.
        last = name.rpartition(".")[2]
        close = [other for other in names if other.rpartition(".")[2] == last][:count]
    if close:
        return f"did you mean {' or '.join(close)}?"
    if not names:
        return "there is none."
    if len(names) <= 24:
        return f"valid: {', '.join(names)}."
    return "--help lists them all."


def _read_yaml(path: Path) -> Tree:
    try:
        tree = yaml.load(path.read_text(encoding="utf-8"), Loader=_YamlLoader)
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not valid YAML: {error}") from error
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise ConfigError(f"{path} holds {type(tree).__name__}; a mapping is expected.")
    return tree
