"""GGUF files: metadata and tensor infos, read within the bounds of the file.

A GGUF file comes from strangers, so no count, length, offset or dimension in it is believed before it is
checked against what the file can hold. Arrays stay where they are until asked for: a vocabulary is skipped in
a few milliseconds by whoever wants only the sizes. Knows the container; it knows no architecture and decodes
no weight.

Source: the format's specification, ggml docs/gguf.md.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.types.errors import CheckpointError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_DIMS = 4
MAX_ELEMENTS = 1 << 48
"""Far over any model; keeps products of dimensions small."""
MAX_KEY_BYTES = 65535

TENSOR_TYPES: dict[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    30: ("BF16", 1, 2),
}
"""Types that can be loaded: name, elements per block, bytes per block."""

_OTHER_TYPES = {
    9: "Q8_1",
    10: "Q2_K",
    11: "Q3_K",
    15: "Q8_K",
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    20: "IQ4_NL",
    21: "IQ3_S",
    22: "IQ2_S",
    23: "IQ4_XS",
    24: "I8",
    25: "I16",
    26: "I32",
    27: "I64",
    28: "F64",
    29: "IQ1_M",
    34: "TQ1_0",
    35: "TQ2_0",
    39: "MXFP4",
    40: "NVFP4",
}
"""Names for messages."""

_SCALARS = {
    0: struct.Struct("<B"),
    1: struct.Struct("<b"),
    2: struct.Struct("<H"),
    3: struct.Struct("<h"),
    4: struct.Struct("<I"),
    5: struct.Struct("<i"),
    6: struct.Struct("<f"),
    7: struct.Struct("<?"),
    10: struct.Struct("<Q"),
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}
_BOOL, _STRING, _ARRAY = 7, 8, 9
_U32 = struct.Struct("<I").unpack_from
_U64 = struct.Struct("<Q").unpack_from
# The least bytes an entry can take: an empty key, its type, one byte; an empty name, its dims, one of them,
# type, offset. They bound the counts of the header by the size of the file.
_MIN_ENTRY_BYTES = 8 + 4 + 1
_MIN_TENSOR_BYTES = 8 + 4 + 8 + 4 + 8


@dataclass(frozen=True, slots=True)
class GgufArray:
    """An array of the metadata, still in the file."""

    element_type: int
    length: int
    offset: int
    """Of the first element, from the start of the file."""


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """Where a tensor's bytes are and what they mean."""

    name: str
    type_name: str
    """`F32`, `Q4_1`, ..."""
    shape: tuple[int, ...]
    """As torch has it: the dimension that is contiguous comes last."""
    offset: int
    """From the start of the file."""
    num_bytes: int


class GgufFile:
    """One open GGUF file: its metadata, its tensors, its bytes.

    The bytes are mapped privately, so that nothing written through a view of them reaches the file.

    Args:
        path: of the file.

    Raises:
        CheckpointError: missing, not GGUF, truncated, or inconsistent with itself.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.data = _map(path)
        """The whole file."""
        self.metadata: dict[str, Any] = {}  # scalars, strings and GgufArray, as the author wrote them
        self.tensors: dict[str, GgufTensor] = {}
        try:
            self._read()
        except (struct.error, OverflowError) as error:
            raise self._error("ends inside its header: the download is incomplete") from error

    def get_strings(self, key: str) -> list[str]:
        """Return an array of strings; empty where the key is absent.

        Raises:
            CheckpointError: something else stands under the key.
        """
        array = self.metadata.get(key)
        if array is None:
            return []
        if not isinstance(array, GgufArray) or array.element_type != _STRING:
            raise self._error(f"has no list of strings under {key!r}")
        data, offset, strings = self.data, array.offset, []
        try:
            for _ in range(array.length):
                start = offset + 8
                offset = start + _U64(data, offset)[0]
                strings.append(data[start:offset].decode("utf-8"))
        except UnicodeDecodeError as error:
            raise self._error(f"holds text under {key!r} that is not UTF-8") from error
        return strings

    def get_numbers(self, key: str) -> NDArray[Any]:  # the element type is the file's
        """Return an array of numbers; empty where the key is absent.

        Raises:
            CheckpointError: something else stands under the key.
        """
        array = self.metadata.get(key)
        if array is None:
            return np.empty(0)
        if not isinstance(array, GgufArray) or array.element_type not in _SCALARS:
            raise self._error(f"has no list of numbers under {key!r}")
        dtype = np.dtype(_SCALARS[array.element_type].format)
        return np.frombuffer(self.data, dtype, array.length, array.offset).copy()

    def get_tensor_bytes(self, tensor: GgufTensor) -> NDArray[np.uint8]:
        """Return a tensor's raw bytes as a view of the map."""
        return np.frombuffer(self.data, np.uint8, tensor.num_bytes, tensor.offset)

    def _read(self) -> None:
        data = self.data
        if data[:4] != MAGIC:
            raise self._error("is no GGUF file: it begins with other bytes")
        version = _U32(data, 4)[0]
        if version not in VERSIONS:
            hint = "a big-endian file" if version > 0xFFFF else f"version {version}"
            raise self._error(f"is {hint} of GGUF; versions {VERSIONS} in little-endian are read")
        num_tensors, num_entries = _U64(data, 8)[0], _U64(data, 16)[0]
        room = len(data) - 24
        if num_entries * _MIN_ENTRY_BYTES > room or num_tensors * _MIN_TENSOR_BYTES > room:
            raise self._error(
                f"claims {num_entries} entries and {num_tensors} tensors, more than {len(data)} bytes can "
                "hold"
            )
        offset = 24
        for _ in range(num_entries):
            offset = self._read_entry(offset)
        infos = []
        for _ in range(num_tensors):
            info, offset = self._read_tensor_info(offset)
            infos.append(info)
        self._place_tensors(infos, offset)

    def _read_entry(self, offset: int) -> int:
        key, offset = self._read_string(offset, "a key", MAX_KEY_BYTES)
        if key in self.metadata:
            raise self._error(f"holds the key {key!r} twice")
        kind = _U32(self.data, offset)[0]
        offset += 4
        if kind == _STRING:
            self.metadata[key], offset = self._read_string(offset, f"the text of {key!r}")
        elif kind == _ARRAY:
            self.metadata[key], offset = self._read_array(offset, key)
        elif kind in _SCALARS:
            scalar = _SCALARS[kind]
            self.metadata[key] = scalar.unpack_from(self.data, offset)[0]
            offset += scalar.size
        else:
            raise self._error(f"has a value of unknown type {kind} under {key!r}")
        return offset

    def _read_array(self, offset: int, key: str) -> tuple[GgufArray, int]:
        data = self.data
        element_type, length = _U32(data, offset)[0], _U64(data, offset + 4)[0]
        offset += 12
        array = GgufArray(element_type, length, offset)
        if element_type in _SCALARS:
            end = offset + length * _SCALARS[element_type].size
            self._check_end(end, f"the list under {key!r}")
            return array, end
        if element_type != _STRING:
            raise self._error(
                f"has a list of elements of type {element_type} under {key!r}, which is not read"
            )
        self._check_end(offset + length * 8, f"the list under {key!r}")
        # Lengths are checked by reading the next one: past the end of the map that raises. The last is
        # checked here.
        for _ in range(length):
            offset += 8 + _U64(data, offset)[0]
        self._check_end(offset, f"the list under {key!r}")
        return array, offset

    def _read_tensor_info(self, offset: int) -> tuple[tuple[str, int, tuple[int, ...], int], int]:
        name, offset = self._read_string(offset, "a tensor's name", MAX_KEY_BYTES)
        num_dims = _U32(self.data, offset)[0]
        if not 1 <= num_dims <= MAX_DIMS:
            raise self._error(f"gives tensor {name!r} {num_dims} dimensions; 1 to {MAX_DIMS} are possible")
        dims = struct.unpack_from(f"<{num_dims}Q", self.data, offset + 4)
        offset += 4 + 8 * num_dims
        kind, place = struct.unpack_from("<IQ", self.data, offset)
        return (name, kind, dims, place), offset + 12

    def _place_tensors(self, infos: list[tuple[str, int, tuple[int, ...], int]], header_end: int) -> None:
        alignment = self.metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            raise self._error(f"has general.alignment={alignment!r}; a power of two is needed")
        start = -(-header_end // alignment) * alignment
        for name, kind, dims, place in infos:
            if name in self.tensors:
                raise self._error(f"holds the tensor {name!r} twice")
            if kind not in TENSOR_TYPES:
                raise self._error(
                    f"stores tensor {name!r} as {_OTHER_TYPES.get(kind, f'type {kind}')}, which is not "
                    "supported; "
                    f"use a file in one of {', '.join(known for known, _, _ in TENSOR_TYPES.values())}"
                )
            type_name, block_len, block_bytes = TENSOR_TYPES[kind]
            num_elements = 1
            for dim in dims:
                num_elements *= dim
                if not 0 < dim <= MAX_ELEMENTS or num_elements > MAX_ELEMENTS:
                    raise self._error(f"gives tensor {name!r} impossible dimensions {list(dims)}")
            if dims[0] % block_len:
                raise self._error(
                    f"gives tensor {name!r} rows of {dims[0]} elements; {type_name} needs a multiple of "
                    f"{block_len}"
                )
            if place % alignment:
                raise self._error(f"puts tensor {name!r} at {place}, off its alignment of {alignment} bytes")
            tensor = GgufTensor(
                name=name,
                type_name=type_name,
                shape=tuple(reversed(dims)),
                offset=start + place,
                num_bytes=num_elements // block_len * block_bytes,
            )
            self._check_end(tensor.offset + tensor.num_bytes, f"tensor {name!r}")
            self.tensors[name] = tensor

    def _read_string(self, offset: int, what: str, max_bytes: int | None = None) -> tuple[str, int]:
        length = _U64(self.data, offset)[0]
        offset += 8
        if max_bytes is not None and length > max_bytes:
            raise self._error(f"has {what} of {length} bytes")
        self._check_end(offset + length, what)
        try:
            return self.data[offset : offset + length].decode("utf-8"), offset + length
        except UnicodeDecodeError as error:
            raise self._error(f"holds {what} that is not UTF-8") from error

    def _check_end(self, end: int, what: str) -> None:
        if end > len(self.data):
            raise self._error(
                f"ends before {what} does ({end} bytes needed, {len(self.data)} there): the file is "
                "truncated "
                "or damaged; fetch it again"
            )

    def _error(self, what: str) -> CheckpointError:
        return CheckpointError(f"{self.path} {what}.")


def iterate_in_file_order(file: GgufFile) -> Iterator[GgufTensor]:
    """Yield the tensors as they lie in the file, so that reading them is sequential."""
    yield from sorted(file.tensors.values(), key=lambda tensor: tensor.offset)


def _map(path: Path) -> mmap.mmap:
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} does not exist; give the path of a .gguf file.") from error
    except ValueError as error:
        raise CheckpointError(f"{path} is empty; the download is incomplete.") from error
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}.") from error
