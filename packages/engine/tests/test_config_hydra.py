"""What our composition relies on in Hydra and OmegaConf, each behaviour pinned on its own."""

from __future__ import annotations

from pathlib import Path

import pytest
from config_fakes import write_conf
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import ConfigCompositionException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import InterpolationKeyError


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    return write_conf(tmp_path)


def run(conf: Path, *overrides: str) -> DictConfig:
    with initialize_config_dir(str(conf), version_base="1.3"):
        return compose("config", list(overrides))


@pytest.mark.parametrize("override", ["+tp=4", "tp=4", "++tp=4"])
def test_null_root_key_is_set_with_and_without_plus(conf: Path, override: str) -> None:
    config = run(conf, override)
    assert config.tp == 4
    assert config.parallel.tensor == 4


def test_plus_is_refused_for_a_root_key_that_has_a_value(tmp_path: Path) -> None:
    conf = write_conf(tmp_path, config="tp: 1\n")
    with pytest.raises(ConfigCompositionException, match="An item is already at 'tp'"):
        run(conf, "+tp=4")


def test_plus_is_accepted_for_a_mandatory_root_key(tmp_path: Path) -> None:
    conf = write_conf(tmp_path, config="tp: ???\n")
    assert run(conf, "+tp=4").tp == 4


def test_folder_of_the_same_name_turns_the_key_into_a_group(tmp_path: Path) -> None:
    conf = write_conf(tmp_path, tp__two="x: 1\n")
    with pytest.raises(ValueError, match="Config group override must be a string"):
        run(conf, "+tp=4")


def test_unknown_key_with_plus_composes_silently(conf: Path) -> None:
    assert run(conf, "+tpp=4").tpp == 4


def test_unknown_key_without_plus_is_refused(conf: Path) -> None:
    with pytest.raises(ConfigCompositionException, match=r"Could not override 'cache\.blocksize'"):
        run(conf, "cache.blocksize=4")


def test_select_default_does_not_serve_a_null_key(tmp_path: Path) -> None:
    text = "tp: null\na: ${oc.select:tp,1}\nb: ${oc.select:missing,1}\n"
    config = run(write_conf(tmp_path, config=text))
    assert config.a is None
    assert config.b == 1


def test_model_is_appended_where_the_defaults_list_leaves_it_out(conf: Path) -> None:
    assert run(conf, "+model=llama").model.family == "llama"
    with pytest.raises(ConfigCompositionException, match="No match in the defaults list"):
        run(conf, "model=llama")


def test_model_cannot_be_appended_where_the_defaults_list_names_it_even_as_null(tmp_path: Path) -> None:
    conf = write_conf(tmp_path, config="defaults:\n- _self_\n- model: null\n")
    with pytest.raises(ConfigCompositionException, match="Multiple values for model"):
        run(conf, "+model=llama")
    assert run(conf, "model=llama").model.family == "llama"


@pytest.mark.parametrize("value", ["/data/checkpoint", "org/name"])
def test_model_location_is_taken_for_a_missing_option(conf: Path, value: str) -> None:
    with pytest.raises(MissingConfigException, match="Could not find 'model"):
        run(conf, f"+model={value}")


def test_model_option_overrides_another_group_from_the_global_package(conf: Path) -> None:
    config = run(conf, "+model=small")
    assert config.tool_parser._target_ == "parsers.tool.hermes.Hermes"
    assert (config.model.family, config.model.path) == ("llama", "/data/small")


def test_model_option_cannot_override_another_group_by_its_bare_name(tmp_path: Path) -> None:
    text = "defaults:\n- override /tool_parser: hermes\nfamily: x\n"
    with pytest.raises(ConfigCompositionException, match="Could not override"):
        run(write_conf(tmp_path, model__x=text), "+model=x")


def test_command_line_wins_over_a_models_own_override(conf: Path) -> None:
    assert run(conf, "+model=small", "tool_parser=auto").tool_parser._target_ == "auto"


def test_preset_needs_a_plus_and_wins_over_options(conf: Path) -> None:
    config = run(conf, "+preset=latency")
    assert (config.preset, config.cache.block_size) == ("latency", 8)
    with pytest.raises(ConfigCompositionException, match="No match in the defaults list"):
        run(conf, "preset=latency")


def test_command_line_wins_over_a_preset(conf: Path) -> None:
    assert run(conf, "+preset=latency", "cache.block_size=4").cache.block_size == 4


@pytest.mark.parametrize("text", ["model.path=pypi:a==1", "model.path=/a (b)", "model.path=/a{b}"])
def test_grammar_refuses_unquoted_text_with_signs(text: str) -> None:
    with pytest.raises(OverrideParseException):
        OverridesParser.create().parse_overrides([text])


def test_grammar_reads_text_that_looks_like_a_number_as_a_number() -> None:
    (override,) = OverridesParser.create().parse_overrides(["model.revision=12e3"])
    assert override.value() == 12000.0


def test_env_resolver_is_registered_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_SECRET", "s3cret")
    assert OmegaConf.create({"a": "${oc.env:SOME_SECRET}"}).a == "s3cret"


def test_resolver_name_may_be_put_together_from_other_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_SECRET", "s3cret")
    assert OmegaConf.create({"x": "env", "a": "${oc.${x}:SOME_SECRET}"}).a == "s3cret"


def test_reference_to_a_missing_key_fails_on_resolving() -> None:
    with pytest.raises(InterpolationKeyError):
        OmegaConf.to_container(OmegaConf.create({"a": "${nothing}"}), resolve=True)


def test_second_initialization_is_refused_while_one_is_active(conf: Path) -> None:
    with (
        initialize_config_dir(str(conf), version_base="1.3"),
        pytest.raises(ValueError, match="already initialized"),
        initialize_config_dir(str(conf), version_base="1.3"),
    ):
        pass
    GlobalHydra.instance().clear()
