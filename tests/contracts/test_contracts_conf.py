"""The conf folder and the code say the same: options compose, targets exist, keys are parameters."""

from __future__ import annotations

import importlib.util
import inspect
import re
import shlex
from pathlib import Path

import pytest
import yaml
from engine.config.argv import expand_sweep, names_model, parse_argv
from engine.config.attention_choice import AttentionOption
from engine.config.catalog import Catalog, find_conf_dir
from engine.config.component import load_target
from engine.config.compose import ENGINE_COMPONENTS, ENGINE_SCHEMAS, compose
from engine.config.interpolation import referenced_key
from engine.config.model import ModelConfig
from engine.config.reference import render_reference
from engine.config.schema import default_values, field_sentences, field_types
from server.settings import SCHEMAS

ROOT = Path(__file__).parents[2]
CATALOG = Catalog(find_conf_dir())
OPTIONS = [(group, option) for group, options in CATALOG.groups.items() for option in options]
SETTINGS = {**ENGINE_SCHEMAS, **SCHEMAS}
COMPONENTS = [
    (group, option)
    for group, options in CATALOG.components.items()
    for option, component in options.items()
    if component.target
]
FILES = [(group, option) for group, option in OPTIONS if group in SETTINGS and group != "model"]

# Parameters that whoever builds the object passes itself; everything else comes from the option file.
RUNTIME_PARAMETERS = {
    "platform": {"info"},
    "attention": {"num_heads", "num_kv_heads", "head_size", "scale", "sliding_window", "soft_cap", "sinks"},
    "quantization": {"context", "config"},
    "loader": {"config"},
    "executor": {"config"},
    "transport": {"config"},
}


def architecture_of(source: ModelConfig) -> str:
    return "LlamaForCausalLM"


def test_the_folder_tested_is_the_projects_own() -> None:
    assert CATALOG.root.resolve() == ROOT / "conf"


@pytest.mark.parametrize(("group", "option"), OPTIONS)
def test_every_option_composes(group: str, option: str) -> None:
    model = [] if group == "model" else ["+model=llama"]
    composition = compose([*model, f"{group}={option}"], schemas=SCHEMAS)
    if group in ENGINE_COMPONENTS:
        assert getattr(composition.engine, group).option == option
    if group == "preset":
        assert composition.tree["preset"] == option


@pytest.mark.parametrize(("group", "option"), COMPONENTS)
def test_every_target_exists_and_takes_what_its_file_gives(group: str, option: str) -> None:
    component = CATALOG.components[group][option]
    target = load_target(component.target)
    assert target.__doc__
    parameters = inspect.signature(target).parameters.values()
    named = {parameter.name for parameter in parameters if parameter.kind is not parameter.VAR_KEYWORD}
    assert set(component.args) == named - RUNTIME_PARAMETERS[group]


@pytest.mark.parametrize("group", ENGINE_COMPONENTS)
def test_every_component_group_offers_auto_by_default(group: str) -> None:
    assert CATALOG.default_options[group] == "auto"
    assert set(CATALOG.groups[group]) > {"auto"}


def test_every_folder_is_a_group_that_something_reads() -> None:
    assert set(CATALOG.groups) == {*SETTINGS, *ENGINE_COMPONENTS, "preset"}


@pytest.mark.parametrize(("group", "option"), FILES)
def test_settings_file_has_the_fields_of_its_dataclass_with_their_sentences(group: str, option: str) -> None:
    schema = SETTINGS[group]
    written = CATALOG.read_option(group, option)
    assert list(written) == list(field_types(schema))
    comments = comments_by_key(CATALOG.root / group / f"{option}.yaml")
    for name, sentence in field_sentences(schema).items():
        assert comments.get(name) == " ".join(sentence.split()), f"{group}.{name}"


@pytest.mark.parametrize(("group", "option"), [(g, o) for g, o in FILES if o in ("default", "auto")])
def test_default_values_of_file_and_dataclass_are_one(group: str, option: str) -> None:
    written = CATALOG.read_option(group, option)
    values = {
        key: CATALOG.root_tree.get(referenced_key(value) or "", value) for key, value in written.items()
    }
    assert values == default_values(SETTINGS[group])


@pytest.mark.parametrize("option", CATALOG.groups["model"])
def test_model_file_states_known_settings_only(option: str) -> None:
    written = CATALOG.read_option("model", option)
    assert set(written) - {"defaults"} <= set(field_types(ENGINE_SCHEMAS["model"]))
    model = compose([f"+model={option}"]).engine.model
    assert load_target(model.implementation)
    assert model.family in CATALOG.groups["model"]
    # Who names architectures is a family; what belongs to one names none.
    assert bool(written.get("architectures")) == (model.family == option)


def test_no_architecture_belongs_to_two_families() -> None:
    named = [
        architecture
        for option in CATALOG.groups["model"]
        for key in ("architectures", "gguf_architectures")
        for architecture in CATALOG.read_option("model", option).get(key) or ()
    ]
    assert sorted(named) == sorted(set(named))


@pytest.mark.parametrize(
    "option", compose(["+model=llama"]).attention_options, ids=lambda option: option.name
)
def test_declared_capabilities_are_the_classes_own(option: AttentionOption) -> None:
    assert load_target(option.target).capabilities == option.capabilities


@pytest.mark.parametrize(("group", "option"), OPTIONS)
def test_every_option_file_opens_with_a_sentence(group: str, option: str) -> None:
    assert CATALOG.describe(group, option).endswith(".")


def test_reference_is_current() -> None:
    written = (ROOT / "conf" / "REFERENCE.yaml").read_text(encoding="utf-8")
    assert written == render_reference(CATALOG), "run `make config-reference`"
    assert yaml.safe_load(written)


def launch_lines() -> list[str]:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    lines = re.findall(r"^python -m (server[.\w]*)((?: .*)?)$", text, re.MULTILINE)
    return [f"{module}{rest.partition('#')[0].rstrip()}" for module, rest in lines]


@pytest.mark.parametrize("line", launch_lines())
def test_launch_line_of_the_readme_composes(line: str) -> None:
    module, *argv = shlex.split(line)
    assert importlib.util.find_spec(module)
    if module == "server.chat":
        return  # talks to a running server; takes no configuration
    parsed = parse_argv(argv)
    default = [] if names_model(parsed.overrides) else ["+model=smollm2"]
    for point in expand_sweep(parsed.overrides) if parsed.is_sweep else [parsed.overrides]:
        compose([*default, *point], schemas=SCHEMAS, architecture_of=architecture_of)


def test_readme_shows_launch_lines() -> None:
    assert len(launch_lines()) >= 5


def comments_by_key(path: Path) -> dict[str, str]:
    """The comment right above each top-level key, as one line."""
    found: dict[str, str] = {}
    comment: list[str] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            comment.append(line.lstrip("# "))
        elif match := re.match(r"(\w+):", line):
            found[match[1]] = " ".join(comment)
            comment = []
        else:
            comment = []
    return found


def test_every_setting_is_read_by_somebody() -> None:
    own = ROOT / "packages" / "engine" / "src" / "engine" / "config"
    sources = [
        p for p in ROOT.glob("packages/*/src/**/*.py") if own not in p.parents or p.parent.name == "rules"
    ]
    code = "\n".join(path.read_text(encoding="utf-8") for path in sources)
    names = [(group, name) for group, schema in SETTINGS.items() for name in field_types(schema)]
    assert [f"{group}.{name}" for group, name in names if not re.search(rf"\.{name}\b", code)] == []
