"""Composition: overrides in, frozen dataclasses out, with who set what."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from dataclasses import FrozenInstanceError, dataclass
from pathlib import Path

import msgspec
import pytest
from config_fakes import write_conf
from engine.config.compose import Composition, compose, render_config
from engine.config.engine_config import EngineConfig
from engine.config.model import ModelConfig
from engine.types.errors import ConfigError
from hydra import compose as hydra_compose
from hydra import initialize_config_dir


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeServerConfig:
    """A caller's own group."""

    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = 8000
    """Port to listen on."""


def test_values_come_from_defaults_options_presets_and_command_line() -> None:
    composition = compose(["+model=smollm2", "+preset=latency", "cache.block_size=32", "+tp=3"])
    engine = composition.engine
    assert engine.model.family == "llama"
    assert engine.cache.block_size == 32
    assert engine.parallel.tensor == 3
    assert engine.loader.option == "auto"
    setters = composition.provenance
    assert setters["model.path"] == "conf/model/smollm2.yaml"
    assert setters["scheduler.max_num_seqs"] == "conf/preset/latency.yaml"
    assert setters["preset"] == "conf/preset/latency.yaml"
    assert setters["cache.block_size"] == "command line"
    assert setters["parallel.tensor"] == "command line"
    assert setters["parallel.pipeline"] == "default"
    assert setters["model.dtype"] == "default"


def test_command_line_wins_over_a_preset_wherever_it_stands() -> None:
    first = compose(["scheduler.max_num_seqs=3", "+preset=latency", "+model=smollm2"])
    assert first.engine.scheduler.max_num_seqs == 3
    assert first.provenance["scheduler.max_num_seqs"] == "command line"


def test_chosen_option_is_its_own_setter() -> None:
    composition = compose(["+model=llama", "loader=dummy"])
    assert composition.engine.loader.target == "engine.loader.dummy.DummyLoader"
    assert composition.provenance["loader._target_"] == "conf/loader/dummy.yaml"


def test_location_names_the_family_and_stands_as_the_path() -> None:
    asked: list[str | None] = []

    def architecture_of(source: ModelConfig) -> str:
        asked.append(source.path)
        return "Qwen2ForCausalLM"

    composition = compose(["+model=/data/My Model (1)"], architecture_of=architecture_of)
    assert asked == ["/data/My Model (1)"]
    assert composition.engine.model.family == "qwen2"
    assert composition.engine.model.path == "/data/My Model (1)"
    assert composition.provenance["model.path"] == "command line"


def test_model_overlay_brings_another_groups_option(tmp_path: Path) -> None:
    overlay = "defaults:\n- override /loader@_global_.loader: dummy\n- _self_\nfamily: x\npath: /x\n"
    conf = write_conf(tmp_path, **_engine_groups(), model__x=overlay)
    composition = compose(["+model=x"], conf_dir=conf)
    assert composition.engine.loader.option == "dummy"
    assert composition.engine.loader.args == {"scale": 0.1}
    assert composition.provenance["loader.scale"] == "conf/loader/dummy.yaml"


def test_callers_groups_come_back_as_their_dataclasses(tmp_path: Path) -> None:
    conf = write_conf(tmp_path, **_engine_groups("- server: default"), server__default="host: h\nport: 1\n")
    composition = compose(
        ["+model=llama", "server.port=2"], schemas={"server": FakeServerConfig}, conf_dir=conf
    )
    assert composition.settings == {"server": FakeServerConfig(host="h", port=2)}
    assert composition.tree["server"] == {"host": "h", "port": 2}


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("cache.block_size=0", "cache.block_size=0 is not valid: expected int >= 1 | null. Tokens per block"),
        ("cache.block_size=big", "cache.block_size='big' is not valid: expected int >= 1"),
        ("cache.enable_prefix_caching=2", "cache.enable_prefix_caching=2 is not valid: expected bool"),
        ("cache.memory_fraction=1.5", "cache.memory_fraction=1.5 is not valid: expected float > 0 and <= 1"),
        ("scheduler.policy=lifo", "scheduler.policy='lifo' is not valid: expected fcfs | priority"),
        ("model.seed=true", "model.seed=True is not valid: expected int >= 0"),
        ("model.sha256=abc", "model.sha256='abc' is not valid: expected text matching"),
        ("model.seed=1" + 30 * "0", "000 does not fit into 64 bits"),
        ("cache.num_blocks=1" + 30 * "0", "000 does not fit into 64 bits"),
        ("tp=0", "parallel.tensor=0 is not valid: expected int >= 1"),
        ("tp=1,2", "tp=1,2: several values need -m"),
        ("cache.block_size={a", "put text in quotes of its own"),
        ("cache.block_size=${nothing}", "nothing"),
    ],
)
def test_bad_value_is_one_line_with_key_value_and_what_is_expected(override: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        compose(["+model=smollm2", override])
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_missing_model_is_refused_with_the_options() -> None:
    with pytest.raises(ConfigError, match=r"no model is named; add \+model=.*llama.*smollm2"):
        compose(["tp=1"])


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"cache__default": "block_size: 4\nblok: 1\n"}, "cache.blok is not a setting"),
        ({"model__llama": "family: ${oc.env:HOME}\n"}, "model.family='${oc.env:HOME}' calls a resolver"),
        ({"model__llama": "family: ???\n"}, "model.family"),
        (
            {"loader__auto": "_target_: os.system\n"},
            "loader._target_='os.system' is outside the allowed packages",
        ),
        ({"loader__auto": "speed: 1\n"}, "loader._target_=None is outside the allowed packages"),
        ({"preset__latency": "# @package _global_\nserved: 1\n"}, "served is not a setting"),
    ],
)
def test_bad_option_file_is_refused(tmp_path: Path, files: dict[str, str], message: str) -> None:
    conf = write_conf(tmp_path, **_engine_groups(), **files)
    with pytest.raises(ConfigError) as error:
        compose(["+model=llama", "+preset=latency"], conf_dir=conf)
    assert message in str(error.value)


def test_operator_may_open_executors_to_a_package_of_their_own(tmp_path: Path) -> None:
    files = _engine_groups() | {
        "executor__mine": "_target_: mine.Executor\n",
        "transport__ipc": "_target_: engine.core.client.ProcessClient\nplugin_packages: []\n",
    }
    conf = write_conf(tmp_path, **files)
    chosen = ["+model=llama", "executor=mine", "transport=ipc"]
    with pytest.raises(
        ConfigError, match=r"executor\._target_='mine\.Executor' is outside the allowed packages"
    ):
        compose(chosen, conf_dir=conf)
    composition = compose([*chosen, "transport.plugin_packages=[mine]"], conf_dir=conf)
    assert composition.engine.executor.target == "mine.Executor"


def test_foreign_conf_package_in_front_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "conf", raising=False)
    with pytest.raises(ConfigError, match="hides Pagoda's own conf package"):
        compose(["+model=smollm2"])


def test_nothing_outside_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    root = logging.getLogger()
    before = (list(root.handlers), root.level, os.getcwd(), dict(os.environ))
    compose(["+model=smollm2"])
    assert (list(root.handlers), root.level, os.getcwd(), dict(os.environ)) == before
    assert list(tmp_path.iterdir()) == []


def test_composes_inside_a_callers_own_hydra_application(tmp_path: Path) -> None:
    conf = write_conf(tmp_path)
    with initialize_config_dir(str(conf), version_base="1.3"):
        assert compose(["+model=smollm2"]).engine.model.family == "llama"
        assert hydra_compose("config", ["+model=small"]).model.path == "/data/small"


def test_threads_may_compose_at_once() -> None:
    found: list[Composition] = []
    threads = [
        threading.Thread(
            target=lambda n=n: found.append(compose(["+model=smollm2", f"cache.block_size={n}"]))
        )
        for n in (8, 16, 24, 32)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(composition.engine.cache.block_size or 0 for composition in found) == [8, 16, 24, 32]


def test_configuration_is_frozen_and_crosses_processes() -> None:
    engine = compose(["+model=smollm2"]).engine
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(engine), type=EngineConfig) == engine
    with pytest.raises(FrozenInstanceError):
        engine.cache.block_size = 4  # type: ignore[misc]


def test_rendered_config_composes_to_itself() -> None:
    composition = compose(["+model=smollm2", "cache.block_size=32"])
    text = render_config(composition)
    assert "block_size: 32\n" in text
    assert "_target_: auto\n" in text
    assert "hydra" not in text


def test_composing_in_a_fresh_process_is_quick_and_free_of_torch() -> None:
    code = (
        "import sys, time; start = time.process_time()\n"
        "from engine.config.compose import compose; compose(['+model=smollm2'])\n"
        "assert 'torch' not in sys.modules; print(time.process_time() - start)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    # Processor time, so that a busy machine does not decide; 0.22 s on a 2-core cloud machine.
    assert float(done.stdout) < 1.0


def _engine_groups(*more_defaults: str) -> dict[str, str]:
    """Fill the small conf folder up to what the engine needs."""
    components = ("platform", "attention", "quantization", "executor", "transport")
    defaults = "\n".join([f"- {group}: auto" for group in components] + list(more_defaults))
    files = {f"{group}__auto": "_target_: auto\n" for group in components}
    files["config"] = (
        f"defaults:\n- _self_\n- cache: default\n- loader: auto\n{defaults}\ntp: null\npreset: null\n"
    )
    return files
