"""What users hold on to equals a checked-in list: a change of it is a decision, seen in a diff."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path

import engine
from engine.config.argv import CommandLine
from engine.config.compose import ENGINE_COMPONENTS, ENGINE_SCHEMAS
from engine.config.schema import field_types
from engine.types.sampling_params import SamplingParams
from server.app import find_routes
from server.metrics import ServerMetrics
from server.settings import SCHEMAS

ROOT = Path(__file__).parents[2]
SURFACE = json.loads((Path(__file__).parent / "surface.json").read_text(encoding="utf-8"))


def test_names_of_the_engine() -> None:
    assert sorted(engine.__all__) == SURFACE["engine"]
    for name in engine.__all__:
        assert getattr(engine, name).__module__.startswith("engine.")


def test_routes() -> None:
    assert sorted(f"{route.method} {route.path}" for route in find_routes()) == SURFACE["routes"]


def test_metric_names() -> None:
    text = ServerMetrics("a model").render().decode()
    names = re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE)
    shown = sorted(f"{name} {kind}" for name, kind in names if not name.endswith("_created"))
    assert shown == SURFACE["metrics"]


def test_settings() -> None:
    schemas = {**ENGINE_SCHEMAS, **SCHEMAS}
    names = [f"{group}.{name}" for group, schema in schemas.items() for name in field_types(schema)]
    assert sorted([*names, *ENGINE_COMPONENTS]) == SURFACE["settings"]


def test_sampling_parameters() -> None:
    assert sorted(SamplingParams.__struct_fields__) == SURFACE["sampling_params"]


def test_programs() -> None:
    assert programs() == SURFACE["programs"]
    for name in SURFACE["programs"]:
        assert callable(importlib.import_module(name).main)


def programs() -> list[str]:
    """Modules of the server that run as programs."""
    source = ROOT / "packages" / "server" / "src"
    guarded = [
        path.relative_to(source).with_suffix("")
        for path in source.rglob("*.py")
        if 'if __name__ == "__main__"' in path.read_text(encoding="utf-8")
    ]
    return sorted(".".join(path.parts) for path in guarded)


def test_flags() -> None:
    assert sorted(CommandLine.__dataclass_fields__) == [
        "is_sweep",
        "overrides",
        "rest",
        "shows_config",
        "wants_help",
    ]
