"""From what people type to a resolved configuration, and to a model that runs."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from engine import LLM, CheckpointError, ConfigError, InvalidRequestError, SamplingParams
from engine.config.compose import compose
from engine.config.engine_config import EngineConfig
from engine.config.model import ModelConfig
from engine.entrypoints.prepare import architecture_of, prepare


@pytest.fixture
def config_only_dir(tiny_llama_dir: Path, tmp_path: Path) -> Path:
    """A folder with config.json and nothing else."""
    shutil.copy(tiny_llama_dir / "config.json", tmp_path)
    return tmp_path


def prepared(folder: Path, entrypoint: str, *overrides: str) -> EngineConfig:
    composition = compose([f"+model={folder}", *overrides], architecture_of=architecture_of)
    return prepare(composition, entrypoint=entrypoint)  # type: ignore[arg-type]


def test_a_folder_becomes_a_configuration_for_either_entry_point(tiny_llama_dir: Path) -> None:
    assert architecture_of(ModelConfig(path=str(tiny_llama_dir))) == "LlamaForCausalLM"
    offline = prepared(tiny_llama_dir, "offline")
    served = prepared(tiny_llama_dir, "async")
    for config in (offline, served):
        assert config.model.family == "llama"
        assert config.checkpoint is not None
        assert Path(config.checkpoint.path) == tiny_llama_dir
        assert config.platform_info is not None
    assert (offline.transport.option, served.transport.option) == ("inproc", "ipc")


def test_what_is_not_there_is_an_error_that_says_so(tmp_path: Path) -> None:
    with pytest.raises((CheckpointError, ConfigError), match="nothing_here"):
        LLM(str(tmp_path / "nothing_here"), progress=False)


def test_an_unknown_setting_is_named(tiny_llama_dir: Path) -> None:
    with pytest.raises(ConfigError, match="num_blokcs"):
        LLM(str(tiny_llama_dir), overrides=["cache.num_blokcs=4"], progress=False)


def test_random_weights_without_a_tokenizer_take_ids_and_give_ids(config_only_dir: Path) -> None:
    overrides = ["loader=dummy", "model.dtype=float32", "model.max_model_len=64"]
    with LLM(str(config_only_dir), overrides=overrides, progress=False) as llm:
        params = SamplingParams(temperature=0, ignore_eos=True, max_tokens=8, detokenize=False)
        outputs = llm.generate([{"prompt_token_ids": [1, 2, 3]}, [4, 5]], params, progress=False)
        assert [len(output.outputs[0].token_ids) for output in outputs] == [8, 8]
        assert [output.outputs[0].text for output in outputs] == ["", ""]
        with pytest.raises(InvalidRequestError, match="tokenizer"):
            llm.generate("text", progress=False)
        with pytest.raises(InvalidRequestError, match="chat template"):
            llm.chat([{"role": "user", "content": "x"}], progress=False)


def test_weights_that_are_missing_are_an_error(config_only_dir: Path) -> None:
    with pytest.raises(ConfigError, match="loader=dummy"):
        LLM(str(config_only_dir), progress=False)
