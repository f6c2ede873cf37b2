"""Cost of naming the blocks of a long prompt, paid once at admission."""

from __future__ import annotations

import numpy as np
from engine.kv_cache.hashing import BlockHasher
from pytest_benchmark.fixture import BenchmarkFixture


def test_hash_prompt_of_100k_tokens(benchmark: BenchmarkFixture) -> None:
    hasher = BlockHasher(16)
    token_ids = np.random.default_rng(0).integers(0, 150_000, size=100_000, dtype=np.int32)

    def hash_prompt() -> list[bytes]:
        hashes: list[bytes] = []
        hasher.extend(hashes, token_ids, "salt")
        return hashes

    assert len(benchmark.pedantic(hash_prompt, rounds=20, warmup_rounds=2)) == 6250
