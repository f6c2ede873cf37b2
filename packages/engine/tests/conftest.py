"""Shared by all tests of the engine: checkpoints to read (see `checkpoint_fixtures`)."""

from __future__ import annotations

import sys
from pathlib import Path

# Tests are imported by path, so their folder is not importable by itself.
sys.path.insert(0, str(Path(__file__).parent))

from checkpoint_fixtures import smollm2_path, tiny_llama_dir, tiny_mistral_dir, tiny_qwen2_dir

__all__ = ["smollm2_path", "tiny_llama_dir", "tiny_mistral_dir", "tiny_qwen2_dir"]
