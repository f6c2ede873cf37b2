"""The header of a safetensors file, checked against the file: names, dtypes, shapes, places.

Reads the header only, so that a truncated or damaged file is refused before any process loads weights from
it. Knows nothing of checkpoints of several files.

Source: the format's description in the safetensors project's README.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TypeGuard

from engine.types.errors import CheckpointError

MAX_HEADER_BYTES = 100_000_000
"""The format's own limit."""

DTYPES = {
    "F64": ("float64", 8),
    "F32": ("float32", 4),
    "F16": ("float16", 2),
    "BF16": ("bfloat16", 2),
    "F8_E4M3": ("float8_e4m3fn", 1),
    "F8_E5M2": ("float8_e5m2", 1),
    "I64": ("int64", 8),
    "I32": ("int32", 4),
    "I16": ("int16", 2),
    "I8": ("int8", 1),
    "U8": ("uint8", 1),
    "BOOL": ("bool", 1),
}
"""Torch's name and bytes per element, by the name in the file."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor of a file."""

    name: str
    dtype: str
    """Torch's name."""
    shape: tuple[int, ...]
    offset: int
    """From the start of the data."""
    num_bytes: int


def read_header(path: Path) -> list[StoredTensor]:
    """Return a file's tensors in the order of their bytes.

    Raises:
        CheckpointError: missing, truncated, or inconsistent with itself.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            header_len = int.from_bytes(file.read(8), "little")
            if size < 8 or header_len > min(size - 8, MAX_HEADER_BYTES):
                raise _error(path, "ends inside its header, or is no safetensors file")
            header = json.loads(file.read(header_len).decode("utf-8"))
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise _error(path, "has a header that is no JSON") from error
    if not isinstance(header, dict):
        raise _error(path, "has a header that is no JSON object")
    tensors = [_read_tensor(path, name, entry) for name, entry in header.items() if name != "__metadata__"]
    tensors.sort(key=lambda tensor: (tensor.offset, tensor.num_bytes))
    end = 0
    for tensor in tensors:
        if tensor.offset != end:
            raise _error(path, f"has a gap or an overlap before tensor {tensor.name!r}")
        end += tensor.num_bytes
    if 8 + header_len + end != size:
        raise _error(path, f"has {size} bytes where its header says {8 + header_len + end}")
    return tensors


def _read_tensor(path: Path, name: str, entry: object) -> StoredTensor:
    if not isinstance(entry, dict):
        raise _error(path, f"describes tensor {name!r} as {type(entry).__name__}")
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if dtype not in DTYPES:
        raise CheckpointError(f"{path} stores tensor {name!r} as {dtype!r}, which is not supported.")
    if not (_are_sizes(shape) and _are_sizes(offsets) and len(offsets) == 2):
        raise _error(path, f"gives tensor {name!r} the shape {shape!r} at {offsets!r}")
    torch_name, element_bytes = DTYPES[dtype]
    num_bytes = math.prod(shape) * element_bytes
    if offsets[1] - offsets[0] != num_bytes:
        raise _error(
            path, f"gives tensor {name!r} {offsets[1] - offsets[0]} bytes where {num_bytes} are needed"
        )
    return StoredTensor(name, torch_name, tuple(shape), offsets[0], num_bytes)


def _are_sizes(values: object) -> TypeGuard[list[int]]:
    return isinstance(values, list) and all(type(value) is int and value >= 0 for value in values)


def _error(path: Path, what: str) -> CheckpointError:
    return CheckpointError(f"{path} {what}: the file is truncated or damaged; fetch it again.")
