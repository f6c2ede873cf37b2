"""Names for block content: a chain of sha256 over tagged, length-prefixed fields.

A block's hash covers its tokens and, through its parent's hash, everything before it. Fields are tagged
and carry their length, so that no two different inputs encode alike; a new kind of field (adapter, media)
is a new tag. Knows bytes and ids, not blocks.
"""

from __future__ import annotations

import os
import struct
from enum import IntEnum
from hashlib import sha256

import numpy as np
from numpy.typing import NDArray


class FieldTag(IntEnum):
    """What a field of a block's preimage is."""

    PARENT = 1
    """Hash of the block before, or the root."""
    TOKENS = 2
    """Ids as little-endian int32."""
    SALT = 3
    """UTF-8 of the request's salt, in the first block only: the chain carries it on."""


def encode_field(tag: FieldTag, payload: bytes) -> bytes:
    """Return tag, length and payload as one unambiguous piece."""
    return _field_header(tag, len(payload)) + payload


class BlockHasher:
    """Extends chains of block hashes. The root is secret unless the operator fixed it.

    A random root keeps the names of one deployment's blocks from being computed elsewhere. An epoch is part
    of the root: a new epoch makes every earlier hash a stranger.
    """

    def __init__(self, block_size: int, seed: str | None = None) -> None:
        self.block_size = block_size
        self.epoch = 0
        self._secret = os.urandom(32) if seed is None else seed.encode()
        self._root = self._compute_root()
        self._parent_header = _field_header(FieldTag.PARENT, 32)
        self._tokens_header = _field_header(FieldTag.TOKENS, 4 * block_size)

    def start_epoch(self) -> None:
        """Change the root, so that nothing hashed so far is met again."""
        self.epoch += 1
        self._root = self._compute_root()

    def extend(self, hashes: list[bytes], token_ids: NDArray[np.int32], salt: str | None) -> None:
        """Append the hashes of the full blocks of `token_ids` that `hashes` does not cover yet.

        Linear in the tokens that are new.

        Mutates: hashes.
        """
        start = len(hashes)
        end = len(token_ids) // self.block_size
        if start >= end:
            return
        width = 4 * self.block_size
        new_ids = token_ids[start * self.block_size : end * self.block_size]
        data = np.ascontiguousarray(new_ids, dtype="<i4").tobytes()
        parent = hashes[-1] if hashes else self._root
        before, between = self._parent_header, self._tokens_header
        extra = encode_field(FieldTag.SALT, salt.encode()) if salt is not None and not hashes else b""
        for offset in range(0, len(data), width):
            parent = sha256(before + parent + between + data[offset : offset + width] + extra).digest()
            hashes.append(parent)
            extra = b""

    def _compute_root(self) -> bytes:
        return sha256(b"pagoda block root" + struct.pack("<Q", self.epoch) + self._secret).digest()


def _field_header(tag: FieldTag, length: int) -> bytes:
    return struct.pack("<BI", tag, length)
