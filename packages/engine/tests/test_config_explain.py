"""Explanations, the help text and the flattened reference: what people read of the configuration."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import yaml
from config_fakes import make_cpu, make_facts, write_conf
from engine.config.catalog import Catalog, find_conf_dir
from engine.config.compose import ENGINE_COMPONENTS, ENGINE_SCHEMAS, compose
from engine.config.explain import explain
from engine.config.help_text import render_help
from engine.config.reference import render_reference
from engine.config.resolve import resolve
from engine.config.schema import field_sentences, field_types


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeLimits:
    """A caller's own group."""

    max_streams: int = 7
    """Streams at once."""


def test_rows_tell_value_setter_and_reason() -> None:
    composition = compose(["+model=smollm2", "preset=latency", "cache.block_size=32"])
    config = resolve(composition, make_facts(), make_cpu(), entrypoint="offline")
    rows = {row.key: row for row in explain(composition, config)}
    assert (rows["cache.block_size"].value, rows["cache.block_size"].set_by) == (32, "command line")
    assert rows["cache.block_size"].why is None
    assert rows["scheduler.max_num_seqs"].set_by == "conf/preset/latency.yaml"
    assert (rows["loader"].value, rows["loader"].given) == ("gguf", "auto")
    assert rows["loader"].why == "the checkpoint's format is gguf"
    assert rows["preset"].value == "latency"
    keys = {f"{group}.{name}" for group, schema in ENGINE_SCHEMAS.items() for name in field_types(schema)}
    arguments = {"transport.plugin_packages"}
    assert keys | set(ENGINE_COMPONENTS) | arguments | {"preset"} == rows.keys()


def test_rows_of_an_unresolved_configuration_have_no_reasons() -> None:
    composition = compose(["+model=smollm2"])
    rows = explain(composition, composition.engine)
    assert {row.why for row in rows} == {None}


def test_help_names_every_group_option_and_setting_with_its_sentence() -> None:
    text = render_help("python -m engine", schemas={"limits": FakeLimits})
    flat = " ".join(text.split())
    assert text.startswith("usage: python -m engine [+model=")
    assert "    limits.max_streams=7   (int)\n" in text
    assert "Streams at once." in flat
    catalog = Catalog(find_conf_dir())
    for group in ("model", "preset", *ENGINE_COMPONENTS):
        assert f"\n  {group}\n" in text
        for option in catalog.groups[group]:
            mark = "*" if catalog.default_options.get(group) == option else " "
            assert f"   {mark}{option} " in text
            assert catalog.describe(group, option) in flat
    for group, schema in ENGINE_SCHEMAS.items():
        for name, sentence in field_sentences(schema).items():
            assert f"    {group}.{name}=" in text
            assert sentence in flat


def test_reference_holds_every_option_flattened(tmp_path: Path) -> None:
    catalog = Catalog(write_conf(tmp_path))
    reference = yaml.safe_load(render_reference(catalog))
    assert reference["cache=default"] == {"cache.block_size": None, "cache.dtype": "auto"}
    assert reference["loader=dummy"] == {
        "loader._target_": "engine.loader.dummy.DummyLoader",
        "loader.scale": 0.1,
    }
    assert reference["preset=latency"] == {"preset": "latency", "cache.block_size": 8}
    assert reference["(default options)"]["loader"] == "auto"
    options = {f"{group}={option}" for group, options in catalog.groups.items() for option in options}
    assert options | {"(root)", "(default options)"} == reference.keys()
