"""Checkpoints for the tests of the whole system: those of the engine's own tests."""

from __future__ import annotations

import sys
from pathlib import Path

# Tests are imported by path, so this folder and that of the engine's fixtures are not importable alone.
sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[2] / "packages" / "engine" / "tests"))

from checkpoint_fixtures import smollm2_path, tiny_llama_dir, tiny_mistral_dir, tiny_qwen2_dir

__all__ = ["smollm2_path", "tiny_llama_dir", "tiny_mistral_dir", "tiny_qwen2_dir"]
