"""Names of block content: what must differ differs, and growing a chain costs only what is new."""

from __future__ import annotations

import hashlib

import numpy as np
from engine.kv_cache import hashing
from engine.kv_cache.hashing import BlockHasher, FieldTag, encode_field
from hypothesis import given
from hypothesis import strategies as st


def chain(hasher: BlockHasher, ids: list[int], salt: str | None = None) -> list[bytes]:
    hashes: list[bytes] = []
    hasher.extend(hashes, np.array(ids, dtype=np.int32), salt)
    return hashes


def test_only_full_blocks_are_named() -> None:
    hasher = BlockHasher(4)
    assert [len(chain(hasher, [7] * count)) for count in range(10)] == [0, 0, 0, 0, 1, 1, 1, 1, 2, 2]


@given(st.lists(st.integers(0, 2**31 - 1), max_size=40), st.lists(st.integers(0, 40), max_size=5))
def test_growing_equals_hashing_at_once(ids: list[int], cuts: list[int]) -> None:
    hasher = BlockHasher(3, "seed")
    grown: list[bytes] = []
    for cut in sorted(cuts):
        hasher.extend(grown, np.array(ids[:cut], dtype=np.int32), "salt")
    hasher.extend(grown, np.array(ids, dtype=np.int32), "salt")
    assert grown == chain(hasher, ids, "salt")


def test_each_block_is_hashed_once(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    calls = []

    def counting(data: bytes) -> object:
        calls.append(len(data))
        return hashlib.sha256(data)

    hasher = BlockHasher(16)
    monkeypatch.setattr(hashing, "sha256", counting)
    hashes: list[bytes] = []
    for end in range(16, 16 * 200 + 1, 16):
        hasher.extend(hashes, np.arange(end, dtype=np.int32), None)
    assert len(calls) == 200
    assert len(set(calls)) == 1


def test_root_is_random_unless_seeded() -> None:
    ids = [1, 2, 3, 4]
    assert chain(BlockHasher(4), ids) != chain(BlockHasher(4), ids)
    assert chain(BlockHasher(4, "s"), ids) == chain(BlockHasher(4, "s"), ids)
    assert chain(BlockHasher(4, "s"), ids) != chain(BlockHasher(4, "t"), ids)


def test_epoch_makes_every_name_new() -> None:
    hasher = BlockHasher(4, "s")
    before = chain(hasher, [1] * 8)
    hasher.start_epoch()
    assert not set(before) & set(chain(hasher, [1] * 8))


def test_salt_reaches_every_block_through_the_chain() -> None:
    hasher = BlockHasher(4, "s")
    names = [chain(hasher, [1] * 12, salt) for salt in (None, "", "a", "b")]
    assert len({name for blocks in names for name in blocks}) == 12


def test_position_and_boundaries_matter() -> None:
    hasher = BlockHasher(2, "s")
    assert chain(hasher, [1, 2, 1, 2])[0] != chain(hasher, [1, 2, 1, 2])[1]
    assert chain(hasher, [1, 2, 3, 4])[1] != chain(hasher, [1, 3, 3, 4])[1]


@given(
    st.lists(st.tuples(st.sampled_from(FieldTag), st.binary(max_size=6)), max_size=4),
    st.lists(st.tuples(st.sampled_from(FieldTag), st.binary(max_size=6)), max_size=4),
)
def test_different_fields_never_encode_alike(
    first: list[tuple[FieldTag, bytes]], second: list[tuple[FieldTag, bytes]]
) -> None:
    def encode(fields: list[tuple[FieldTag, bytes]]) -> bytes:
        return b"".join(encode_field(tag, payload) for tag, payload in fields)

    assert (encode(first) == encode(second)) == (first == second)
