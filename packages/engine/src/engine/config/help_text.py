"""The text of `--help`: groups, options and settings, from the option files and the dataclasses."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.config.catalog import Catalog, find_conf_dir
from engine.config.compose import ENGINE_SCHEMAS
from engine.config.interpolation import referenced_key
from engine.config.schema import default_values, describe_type, field_sentences, field_types

_WIDTH = 100

_FLAGS = """\
Flags:
  --help        this text
  --cfg job     print the composed configuration and exit
"""
_SWEEP_FLAG = """\
  -m            one run per combination of values: -m +model=smollm2 cache.block_size=16,32
"""


def render_help(
    program: str,
    *,
    operands: str = "",
    can_sweep: bool = True,
    schemas: Mapping[str, type] | None = None,
    conf_dir: Path | None = None,
) -> str:
    """Return the help of a program that takes configuration on its command line.

    Args:
        program: as typed, for example `python -m server`.
        operands: what the program takes beside overrides, for example `[KEY ...]`.
        can_sweep: whether it runs combinations of values, so that `-m` is a flag of it.
        schemas: dataclasses of the program's own settings groups.
    """
    catalog = Catalog(conf_dir or find_conf_dir())
    shown = {**ENGINE_SCHEMAS, **(schemas or {})}
    overrides = "[+model=OPTION|PATH|ORG/NAME] [+tp=N] [preset=NAME] [group=option] [key=value]"
    parts = [
        f"usage: {program} {overrides} {operands}".rstrip() + "\n",
        _FLAGS + (_SWEEP_FLAG if can_sweep else ""),
        "Groups (choose with group=option; * is the default):\n" + _render_groups(catalog, shown),
        "Settings (key=value):\n" + "\n".join(_render_settings(catalog, g, s) for g, s in shown.items()),
    ]
    return "\n".join(parts)


def _render_groups(catalog: Catalog, schemas: Mapping[str, type]) -> str:
    lines: list[str] = []
    for group, options in catalog.groups.items():
        if group not in schemas and group not in catalog.components and group != "preset":
            continue
        if options == ["default"]:
            continue  # nothing to choose; its settings stand below
        lines.append(f"  {group}")
        for option in options:
            mark = "*" if catalog.default_options.get(group) == option else " "
            lines.append(_wrap(f"   {mark}{option:<14} ", catalog.describe(group, option)))
    return "\n".join(lines) + "\n"


def _render_settings(catalog: Catalog, group: str, schema: type) -> str:
    defaults = _default_values(catalog, group, schema)
    sentences = field_sentences(schema)
    lines = [f"  {group}"]
    for name, hint in field_types(schema).items():
        value = _yaml_text(defaults[name]) if name in defaults else ""
        lines.append(f"    {group}.{name}={value}   ({describe_type(hint)})")
        if name in sentences:
            lines.append(_wrap("        ", sentences[name]))
    return "\n".join(lines) + "\n"


def _default_values(catalog: Catalog, group: str, schema: type) -> Mapping[str, Any]:
    option = catalog.default_options.get(group)
    tree = default_values(schema) | (catalog.read_option(group, option) if option else {})
    return {key: catalog.root_tree.get(referenced_key(value) or "", value) for key, value in tree.items()}


def _yaml_text(value: object) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    return str(value) if value != "" else "''"


def _wrap(indent: str, text: str) -> str:
    if not text:
        return indent.rstrip()
    return textwrap.fill(
        " ".join(text.split()), _WIDTH, initial_indent=indent, subsequent_indent=" " * len(indent)
    )
