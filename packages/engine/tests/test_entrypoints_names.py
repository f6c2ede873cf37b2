"""The names at the top of the package, and what importing them costs."""

from __future__ import annotations

import subprocess
import sys

import engine
import pytest

PROMISED = {"LLM", "AsyncLLM", "SamplingParams", "RequestOutput", "CompletionOutput", "InvalidRequestError"}


def test_every_promised_name_is_there_and_any_other_an_error() -> None:
    assert set(engine.__all__) >= PROMISED
    for name in engine.__all__:
        assert getattr(engine, name).__name__ == name
    assert dir(engine) == sorted(engine.__all__)
    with pytest.raises(AttributeError, match="PoolingParam"):
        engine.PoolingParam  # noqa: B018  # the access is what is tested


def test_the_frontend_and_the_entry_points_never_load_torch() -> None:
    code = (
        "import sys, engine\n"
        "for name in engine.__all__: getattr(engine, name)\n"
        "import engine.entrypoints.prepare\n"
        "assert not {'torch', 'transformers'} & set(sys.modules), 'loaded'\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
