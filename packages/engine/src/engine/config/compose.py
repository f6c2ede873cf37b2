"""Composition: overrides in, one unresolved configuration out, with who set what.

The only place that runs Hydra. It writes nothing, changes no directory and no logging, and leaves a caller's
own Hydra application as it was. Behind it only frozen dataclasses travel. It decides nothing: "auto" and null
stay.
"""

from __future__ import annotations

import dataclasses
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import yaml
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.config_loader import ConfigLoader
from hydra.core.global_hydra import GlobalHydra
from hydra.core.singleton import Singleton
from hydra.errors import HydraException, OverrideParseException
from hydra.types import RunMode
from omegaconf import OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from engine.config.argv import ArchitectureOf, rewrite
from engine.config.attention_choice import AttentionOption
from engine.config.cache import CacheConfig
from engine.config.catalog import Catalog, Tree, component_from_tree, find_conf_dir, nearest
from engine.config.component import OWN_PACKAGES, ComponentConfig
from engine.config.engine_config import EngineConfig
from engine.config.interpolation import calls_resolver
from engine.config.model import ModelConfig
from engine.config.parallel import ParallelConfig
from engine.config.provenance import DEFAULT, leaves, trace
from engine.config.scheduler import SchedulerConfig
from engine.config.schema import build_settings
from engine.config.settings import CompilationConfig, ObservabilityConfig, SamplingConfig
from engine.types.attention import AttentionCapabilities
from engine.types.errors import ConfigError

ENGINE_SCHEMAS: Mapping[str, type] = {
    "model": ModelConfig,
    "parallel": ParallelConfig,
    "cache": CacheConfig,
    "scheduler": SchedulerConfig,
    "compilation": CompilationConfig,
    "sampling": SamplingConfig,
    "observability": ObservabilityConfig,
}
ENGINE_COMPONENTS = ("platform", "attention", "quantization", "loader", "executor", "transport")

_SEVERAL_VALUES = re.compile(r"(?:Ambiguous value for argument|Sweep parameters) '\+*(.*)'")
_COULD_NOT_OVERRIDE = re.compile(r"Could not override '([\w.]+)'")

# Hydra keeps its state in process-wide singletons.
_hydra_lock = threading.Lock()


@dataclass(frozen=True, slots=True, kw_only=True)
class Composition:
    """A configuration as composed, before anything is resolved."""

    engine: EngineConfig
    settings: dict[str, Any] = field(default_factory=dict)  # each of the type that the caller's schema names
    """The caller's own groups by name, each an instance of its schema."""
    provenance: dict[str, str]
    """Who set each dotted key: `default`, an option file, or `command line`."""
    components: dict[str, dict[str, ComponentConfig]]
    """Every component option by group and name: what `auto` may become."""
    capabilities: dict[str, dict[str, dict[str, Any]]]  # YAML mappings, typed by whoever reads them
    """What component options declare that they can do, by group and name."""
    families: dict[str, str]
    """Model option by the architecture that it serves."""
    tree: dict[str, Any]  # the composed YAML
    """The composed configuration as plain data."""

    @property
    def attention_options(self) -> list[AttentionOption]:
        """The attention backends with what they declare."""
        return [
            AttentionOption(
                name=name,
                target=self.components["attention"][name].target,
                capabilities=msgspec.convert(declared, AttentionCapabilities),
            )
            for name, declared in self.capabilities.get("attention", {}).items()
        ]


def compose(
    overrides: Sequence[str],
    *,
    schemas: Mapping[str, type] | None = None,
    architecture_of: ArchitectureOf | None = None,
    conf_dir: Path | None = None,
) -> Composition:
    """Return the configuration that the overrides describe.

    Args:
        overrides: as typed: `+model=/data/x`, `+tp=4`, `cache.block_size=32`.
        schemas: dataclasses of the caller's own settings groups, by group.
        architecture_of: tells the architecture behind a source; needed only for `+model=<path or id>`.
        conf_dir: another folder of options; None finds the installed one.

    Raises:
        ConfigError: with the key, the value and the nearest valid key.
    """
    catalog = Catalog(conf_dir or find_conf_dir())
    own_schemas = {**ENGINE_SCHEMAS, **(schemas or {})}
    lines = rewrite(overrides, catalog, schemas=own_schemas, architecture_of=architecture_of)
    if not any(line.startswith("+model=") for line in lines):
        raise ConfigError(
            f"no model is named; add +model=<option, path or hub id>. Options: "
            f"{', '.join(catalog.groups.get('model', []))}.",
            key="model",
        )
    composed = _run_hydra(lines, catalog)
    _refuse_unknown_groups(composed.tree, own_schemas, catalog)
    engine_groups: dict[str, Any] = {
        group: build_settings(group, composed.tree.get(group) or {}, schema)
        for group, schema in ENGINE_SCHEMAS.items()
    }
    for group in ENGINE_COMPONENTS:
        engine_groups[group] = component_from_tree(
            group,
            composed.choices.get(group, ""),
            composed.tree.get(group) or {},
            _allowed(group, composed.tree),
        )
    settings: dict[str, Any] = {
        group: build_settings(group, composed.tree.get(group) or {}, schema)
        for group, schema in (schemas or {}).items()
    }
    tree = {key: composed.tree[key] for key in (*catalog.root_tree, *ENGINE_COMPONENTS)}
    tree |= {group: dataclasses.asdict(engine_groups[group]) for group in ENGINE_SCHEMAS}
    tree |= {group: dataclasses.asdict(values) for group, values in settings.items()}
    return Composition(
        engine=EngineConfig(**engine_groups),
        settings=settings,
        provenance={key: composed.provenance.get(key, DEFAULT) for key, _ in leaves(tree)},
        components=catalog.components,
        capabilities={
            group: declared
            for group, options in catalog.components.items()
            if (declared := {name: c for name in options if (c := catalog.capabilities(group, name))})
        },
        families=catalog.families,
        tree=tree,
    )


def render_config(composition: Composition) -> str:
    """Return the composed configuration as YAML, for `--cfg job`."""
    text: str = yaml.safe_dump(composition.tree, sort_keys=False, width=110)
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class _Composed:
    tree: Tree
    choices: dict[str, str]
    provenance: dict[str, str]


def _run_hydra(lines: list[str], catalog: Catalog) -> _Composed:
    try:
        with _hydra_loader(catalog.root) as loader:
            config = hydra_compose("config", lines, return_hydra_config=True)
            merged = loader.compute_defaults_list("config", lines, RunMode.RUN).defaults
        choices = {
            str(group): str(option)
            for group, option in config.hydra.runtime.choices.items()
            if not str(group).startswith("hydra/")
        }
        with open_dict(config):
            del config["hydra"]
        raw: Any = OmegaConf.to_container(config)  # plain data; the root is a mapping
        _refuse_resolvers(raw)
        tree: Any = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    except (HydraException, OmegaConfBaseException) as error:
        raise _as_config_error(error) from error
    files = [
        (default.config_path, default.package or "")
        for default in merged
        if default.config_path and not default.config_path.startswith("hydra/")
    ]
    keys = [line.partition("=")[0].lstrip("+") for line in lines]
    return _Composed(
        tree=tree,
        choices=choices,
        provenance=trace(files, (key for key in keys if key not in catalog.groups), catalog, raw),
    )


@contextmanager
def _hydra_loader(conf_dir: Path) -> Iterator[ConfigLoader]:
    """Give a config loader for the folder; afterwards Hydra's singletons are as they were."""
    with _hydra_lock:
        outer = Singleton.get_state() if GlobalHydra.instance().is_initialized() else None
        try:
            GlobalHydra.instance().clear()
            with initialize_config_dir(str(conf_dir.resolve()), job_name="pagoda", version_base="1.3"):
                yield GlobalHydra.instance().config_loader()
        finally:
            if outer is not None:
                Singleton.set_state(outer)


def _allowed(group: str, tree: Tree) -> tuple[str, ...]:
    """Packages that a group's target may come from: the core opens executors alone to an operator's own."""
    transport = tree.get("transport") or {}
    plugins = transport.get("plugin_packages") or () if group == "executor" else ()
    return (*OWN_PACKAGES, *plugins)


def _refuse_resolvers(raw: Tree) -> None:
    for key, value in leaves(raw):
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, str) and calls_resolver(text):
                raise ConfigError(
                    f"{key}={text!r} calls a resolver; only plain references such as ${{tp}} are allowed.",
                    key=key,
                )


def _refuse_unknown_groups(tree: Tree, schemas: Mapping[str, type], catalog: Catalog) -> None:
    known = {*catalog.root_tree, *catalog.groups, *schemas}
    for key in tree:
        if key not in known:
            raise ConfigError(f"{key} is not a setting; {nearest(key, known)}", key=key)


def _as_config_error(error: Exception) -> ConfigError:
    if isinstance(error, OverrideParseException):
        key, _, value = error.override.partition("=")
        return ConfigError(
            f"{key}={value!r} cannot be read ({_first_line(error)}); put text in quotes of its own: "
            f"\"{key}='{value}'\".",
            key=key,
        )
    several = _SEVERAL_VALUES.match(str(error))
    if several:
        return ConfigError(f"{several[1]}: several values need -m, which runs one after the other.")
    refused = _COULD_NOT_OVERRIDE.search(str(error))
    if refused:
        key = refused[1]
        return ConfigError(
            f"{key} is not a setting of the option chosen for {key.partition('.')[0]}; leave it out or "
            "choose the option it belongs to.",
            key=key,
        )
    cause = error.__cause__ if isinstance(error.__cause__, OmegaConfBaseException) else error
    full_key = getattr(cause, "full_key", None) or None
    return ConfigError(f"{f'{full_key}: ' if full_key else ''}{_first_line(cause)}", key=full_key)


def _first_line(error: BaseException) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
