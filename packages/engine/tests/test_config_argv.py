"""The rewrite of what people type, as a pure function, and the expansion of sweeps."""

from __future__ import annotations

from pathlib import Path

import pytest
from config_fakes import write_conf
from engine.config.argv import expand_sweep, names_model, parse_argv, quote, rewrite
from engine.config.catalog import Catalog
from engine.config.compose import ENGINE_SCHEMAS
from engine.config.model import ModelConfig
from engine.types.errors import ConfigError
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given
from hypothesis import strategies as st


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return Catalog(write_conf(tmp_path))


def rewritten(catalog: Catalog, *overrides: str, architecture: str | None = "LlamaForCausalLM") -> list[str]:
    return rewrite(overrides, catalog, schemas=ENGINE_SCHEMAS, architecture_of=lambda _: architecture)


@pytest.mark.parametrize("typed", ["+model=llama", "model=llama", "++model=llama", "+model='llama'"])
def test_model_option_is_appended_however_it_is_typed(catalog: Catalog, typed: str) -> None:
    assert rewritten(catalog, typed) == ["+model=llama"]


@pytest.mark.parametrize(
    ("location", "quoted"),
    [
        ("/data/Qwen3-8B", "'/data/Qwen3-8B'"),
        ("org/name", "'org/name'"),
        ("./here", "'./here'"),
        ("weights.gguf", "'weights.gguf'"),
        ("pypi:some-wheel==0.1.2", "'pypi:some-wheel==0.1.2'"),
        ("/data/My Models (1)/it's=x.gguf", r"'/data/My Models (1)/it\'s=x.gguf'"),
    ],
)
def test_location_becomes_family_and_path(catalog: Catalog, location: str, quoted: str) -> None:
    assert rewritten(catalog, f"+model={location}") == ["+model=llama", f"++model.path={quoted}"]


def test_what_pins_a_source_holds_for_its_first_read(catalog: Catalog) -> None:
    asked: list[ModelConfig] = []

    def architecture_of(source: ModelConfig) -> str:
        asked.append(source)
        return "LlamaForCausalLM"

    typed = ["+model=org/name", "model.revision=0123", f"model.sha256='{'a' * 64}'", "++model.file=x.gguf"]
    rewrite(typed, catalog, schemas=ENGINE_SCHEMAS, architecture_of=architecture_of)
    rewrite(
        ["model.revision=null", "+model=org/name"],
        catalog,
        schemas=ENGINE_SCHEMAS,
        architecture_of=architecture_of,
    )
    assert asked == [
        ModelConfig(path="org/name", revision="0123", sha256="a" * 64, file="x.gguf"),
        ModelConfig(path="org/name"),
    ]
    with pytest.raises(ConfigError, match=r"model\.sha256"):
        rewritten(catalog, "+model=org/name", "model.sha256=short")


def test_option_of_that_name_never_asks_for_an_architecture(catalog: Catalog) -> None:
    def refuse(source: ModelConfig) -> str:
        raise AssertionError(source)

    assert rewrite(["+model=small"], catalog, schemas=ENGINE_SCHEMAS, architecture_of=refuse) == [
        "+model=small"
    ]


def test_order_is_model_groups_preset_values(catalog: Catalog) -> None:
    typed = ["cache.block_size=4", "+tp=2", "preset=latency", "+loader=dummy", "+model=llama"]
    assert rewritten(catalog, *typed) == [
        "+model=llama",
        "loader=dummy",
        "+preset=latency",
        "++cache.block_size=4",
        "tp=2",
    ]


def test_no_preset_is_a_preset(catalog: Catalog) -> None:
    assert rewritten(catalog, "preset=null", "+model=llama") == ["+model=llama"]


@pytest.mark.parametrize(
    ("typed", "passed"),
    [
        ("model.revision=12e3", "++model.revision='12e3'"),
        ("model.path=/a b/(c)", "++model.path='/a b/(c)'"),
        ("model.revision=null", "++model.revision=null"),
        ("model.revision='12'", "++model.revision='12'"),
        ("model.dtype=float32", "++model.dtype=float32"),
        ("cache.block_size=16", "++cache.block_size=16"),
    ],
)
def test_only_free_text_is_quoted(catalog: Catalog, typed: str, passed: str) -> None:
    assert rewritten(catalog, typed) == [passed]


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("+tpp=4", "tpp is not a setting; did you mean tp?"),
        ("cache.bloc_size=4", "cache.bloc_size is not a setting; did you mean cache.block_size"),
        ("block_size=4", "did you mean cache.block_size?"),
        ("cach.block_size=4", "did you mean cache.block_size"),
        ("+model=lama", "model='lama' is not an option; did you mean llama?"),
        ("+model=unheard", "valid: llama, small. A checkpoint is named by path (./unheard)"),
        ("loader=gguff", "loader='gguff' is not an option; valid: auto, dummy."),
        ("loader.speed=4", "loader.speed is not a setting of any loader option"),
        ("loader._target_=os.system", "loader._target_ cannot be set; choose an option: loader=auto|dummy"),
        ("preset=fast", "preset='fast' is not an option; valid: latency."),
        ("~cache", "'~cache' would delete a key"),
        ("tp", "'tp' has no value; write tp=value"),
        ("=4", "does not start with a key"),
        ("cache@other=default", "drop the '@' part"),
        ("hydra.run.dir=/tmp", "hydra.run.dir belongs to Hydra itself"),
        ("hydra.searchpath=[file:///tmp]", "hydra.searchpath belongs to Hydra itself"),
        ("model.path=${oc.env:HOME}", "calls a resolver; only plain references such as ${tp} are allowed"),
        ("+model=${oc.env:HOME}", "calls a resolver"),
        ("model.path=${oc.${preset}:HOME}", "calls a resolver"),
        ("model.path=/a,/b", "lists several values: add -m"),
        ("+model=/a,/b", "lists several values: add -m"),
        ("+model=llama,small", "lists several values: add -m"),
    ],
)
def test_what_cannot_work_is_refused_with_what_would(catalog: Catalog, typed: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        rewritten(catalog, typed)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_group_named_twice_is_refused(catalog: Catalog) -> None:
    with pytest.raises(ConfigError, match="model is chosen twice: '\\+model=llama' and 'model=small'"):
        rewritten(catalog, "+model=llama", "model=small")


def test_settings_group_without_schema_is_refused(tmp_path: Path) -> None:
    catalog = Catalog(write_conf(tmp_path, server__default="port: 1\n"))
    with pytest.raises(ConfigError, match="the group server has no effect here"):
        rewritten(catalog, "server.port=2")


@pytest.mark.parametrize(
    ("architecture", "message"),
    [
        (None, "its architecture cannot be told; name the family as well: +model=<family> model.path=/a"),
        ("OtherForCausalLM", "'OtherForCausalLM', which no model option serves; served: LlamaForCausalLM"),
    ],
)
def test_location_of_no_known_family_is_refused(
    catalog: Catalog, architecture: str | None, message: str
) -> None:
    with pytest.raises(ConfigError) as error:
        rewritten(catalog, "+model=/a", architecture=architecture)
    assert message in str(error.value)


@given(st.text(st.characters(codec="utf-8", exclude_characters="\n\r$"), min_size=1))
def test_quoted_text_reads_back_unchanged(text: str) -> None:
    (override,) = OverridesParser.create().parse_overrides([f"key={quote(text)}"])
    assert override.value() == text


def test_sweep_gives_every_combination_last_fastest() -> None:
    assert expand_sweep(["+model=a/b,c", "tp=1,2", "cache.block_size=range(16,49,16)"])[:4] == [
        ["+model=a/b", "tp=1", "cache.block_size=16"],
        ["+model=a/b", "tp=1", "cache.block_size=32"],
        ["+model=a/b", "tp=1", "cache.block_size=48"],
        ["+model=a/b", "tp=2", "cache.block_size=16"],
    ]
    assert len(expand_sweep(["+model=a/b,c", "tp=1,2", "cache.block_size=range(16,49,16)"])) == 12


def test_sweep_without_lists_is_one_point() -> None:
    assert expand_sweep(["+model=/a (1)/x", "m.list=[1,2]", "m.text='a,b'"]) == [
        ["+model=/a (1)/x", "m.list=[1,2]", "m.text='a,b'"]
    ]


def test_sweep_refuses_what_has_no_list_of_values() -> None:
    with pytest.raises(ConfigError, match="choice"):
        expand_sweep(["tp=interval(1,2)"])


def test_argv_falls_into_flags_overrides_and_words() -> None:
    line = parse_argv(["-m", "+model=x", "--cfg", "job", "cache.dtype", "tp=1,2", "~cache"])
    assert line.overrides == ["+model=x", "tp=1,2", "~cache"]
    assert line.rest == ["cache.dtype"]
    assert line.is_sweep
    assert line.shows_config
    assert not line.wants_help


@pytest.mark.parametrize(
    "argv", [["--cfg", "hydra"], ["--cfg"], ["--config-dir=/tmp"], ["--experimental-rerun", "x"], ["-p"]]
)
def test_other_flags_are_refused(argv: list[str]) -> None:
    with pytest.raises(ConfigError, match=argv[0].split("=")[0]):
        parse_argv(argv)


def test_a_model_is_noticed_in_every_spelling() -> None:
    assert names_model(["tp=1", "+model=x"])
    assert names_model(["model=x"])
    assert not names_model(["model.path=/x", "tp=1"])


@pytest.mark.parametrize("location", ["/a,b", "/it's", "C:\\models\\", "/a 'b' \\'c\\'"])
def test_quoted_location_is_taken_as_it_is(catalog: Catalog, location: str) -> None:
    asked: list[str | None] = []

    def architecture_of(source: ModelConfig) -> str:
        asked.append(source.path)
        return "LlamaForCausalLM"

    typed = f"+model={quote(f'./{location}')}"
    lines = rewrite([typed], catalog, schemas=ENGINE_SCHEMAS, architecture_of=architecture_of)
    assert asked == [f"./{location}"]
    assert lines == ["+model=llama", f"++model.path={quote(f'./{location}')}"]
