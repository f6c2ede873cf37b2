"""The GGUF reader: what the gguf package writes is read as it reads it, and damage is always named."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
from engine.config.checkpoint import read_facts
from engine.config.gguf_file import TENSOR_TYPES, GgufFile, iterate_in_file_order
from engine.frontend.tokenizer import read_tokenizer
from engine.types.errors import CheckpointError
from tiny_gguf import write_gguf


def write_small(path: Path) -> Path:
    """Write a file with every kind of metadata and two tensors."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint8("a.u8", 255)
    writer.add_int8("a.i8", -128)
    writer.add_uint16("a.u16", 65535)
    writer.add_int16("a.i16", -1)
    writer.add_int32("a.i32", -5)
    writer.add_uint64("a.u64", 1 << 63)
    writer.add_int64("a.i64", -(1 << 62))
    writer.add_float32("a.f32", 0.5)
    writer.add_float64("a.f64", 1e300)
    writer.add_bool("a.bool", True)
    writer.add_string("a.text", "na\u00efve \u6771")
    writer.add_array("a.words", ["one", "", "dr\u00e9i"])
    writer.add_array("a.numbers", [1, -2, 3])
    writer.add_tensor("first.weight", np.arange(12, dtype=np.float32).reshape(3, 4))
    writer.add_tensor("second.weight", np.arange(5, dtype=np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def patch(data: bytes, old: bytes, new: bytes) -> bytes:
    assert data.count(old) == 1
    return data.replace(old, new)


def string(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def test_metadata_and_tensors_are_read_as_written(tmp_path: Path) -> None:
    file = GgufFile(write_small(tmp_path / "small.gguf"))
    values = {key: value for key, value in file.metadata.items() if key.startswith("a.")}
    del values["a.words"], values["a.numbers"]
    assert values == {
        "a.u8": 255,
        "a.i8": -128,
        "a.u16": 65535,
        "a.i16": -1,
        "a.i32": -5,
        "a.u64": 1 << 63,
        "a.i64": -(1 << 62),
        "a.f32": 0.5,
        "a.f64": 1e300,
        "a.bool": True,
        "a.text": "na\u00efve \u6771",
    }
    assert file.get_strings("a.words") == ["one", "", "dr\u00e9i"]
    assert file.get_numbers("a.numbers").tolist() == [1, -2, 3]
    assert file.get_strings("absent") == []
    assert file.get_numbers("absent").size == 0
    first, second = iterate_in_file_order(file)
    assert (first.name, first.shape, first.type_name) == ("first.weight", (3, 4), "F32")
    assert file.get_tensor_bytes(first).view(np.float32).tolist() == list(range(12))
    assert (second.name, second.shape, second.type_name) == ("second.weight", (5,), "F16")


def test_types_have_the_sizes_that_the_format_gives_them() -> None:
    for kind, (name, *sizes) in TENSOR_TYPES.items():
        known = gguf.GGMLQuantizationType(kind)
        assert known.name == name
        assert gguf.GGML_QUANT_SIZES[known] == tuple(sizes)


def test_default_model_reads_like_the_gguf_package(smollm2_path: Path) -> None:
    ours, theirs = GgufFile(smollm2_path), gguf.GGUFReader(smollm2_path)
    assert list(ours.tensors) == [tensor.name for tensor in theirs.tensors]
    for tensor in theirs.tensors:
        mine = ours.tensors[tensor.name]
        assert (mine.offset, mine.num_bytes) == (tensor.data_offset, tensor.n_bytes)
        assert mine.type_name == tensor.tensor_type.name
        assert mine.shape == tuple(reversed(tensor.shape.tolist()))
    field = theirs.fields["tokenizer.ggml.merges"]
    assert ours.get_strings("tokenizer.ggml.merges") == field.contents()


@pytest.mark.parametrize(
    ("key", "call"), [("a.numbers", "get_strings"), ("a.text", "get_strings"), ("a.words", "get_numbers")]
)
def test_wrong_kind_of_list_is_refused(tmp_path: Path, key: str, call: str) -> None:
    file = GgufFile(write_small(tmp_path / "small.gguf"))
    with pytest.raises(CheckpointError, match=key):
        getattr(file, call)(key)


def test_missing_empty_and_foreign_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="does not exist"):
        GgufFile(tmp_path / "none.gguf")
    (tmp_path / "empty.gguf").touch()
    with pytest.raises(CheckpointError, match="is empty"):
        GgufFile(tmp_path / "empty.gguf")
    (tmp_path / "foreign.gguf").write_bytes(b"PK\3\4" + bytes(100))
    with pytest.raises(CheckpointError, match="no GGUF file"):
        GgufFile(tmp_path / "foreign.gguf")
    with pytest.raises(CheckpointError, match="cannot be read"):
        GgufFile(tmp_path)


def test_every_truncation_is_noticed(tmp_path: Path) -> None:
    whole = write_small(tmp_path / "small.gguf").read_bytes()
    # The file ends with the padding of its last tensor, which nobody needs.
    needed = max(
        tensor.offset + tensor.num_bytes for tensor in GgufFile(tmp_path / "small.gguf").tensors.values()
    )
    path = tmp_path / "cut.gguf"
    for length in range(1, needed):
        path.write_bytes(whole[:length])
        with pytest.raises(CheckpointError, match=r"truncated|incomplete|no GGUF file|can hold"):
            GgufFile(path)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        pytest.param(b"GGUF\3\0\0\0", b"GGUF\1\0\0\0", "version 1", id="old version"),
        pytest.param(b"GGUF\3\0\0\0", b"GGUF\0\0\0\3", "big-endian", id="big-endian"),
        pytest.param(
            b"GGUF\3\0\0\0" + struct.pack("<Q", 2),
            b"GGUF\3\0\0\0" + struct.pack("<Q", 1 << 60),
            "more than",
            id="count of tensors",
        ),
        pytest.param(
            string("a.words") + struct.pack("<IIQ", 9, 8, 3),
            string("a.words") + struct.pack("<IIQ", 9, 8, 1 << 62),
            "a.words",
            id="length of a list of strings",
        ),
        pytest.param(
            string("a.numbers") + struct.pack("<IIQ", 9, 5, 3),
            string("a.numbers") + struct.pack("<IIQ", 9, 5, 1 << 62),
            "a.numbers",
            id="length of a list of numbers",
        ),
        pytest.param(
            string("a.numbers") + struct.pack("<II", 9, 5),
            string("a.numbers") + struct.pack("<II", 9, 9),
            "elements of type 9",
            id="lists of lists",
        ),
        pytest.param(string("a.u8"), string("a.i8"), "twice", id="a key twice"),
        pytest.param(string("a.u8") + b"\0", string("a.u8") + b"\x63", "unknown type", id="type of a value"),
        pytest.param(b"na\xc3\xafve", b"na\xffxve", "UTF-8", id="text that is not UTF-8"),
        pytest.param(
            string("first.weight") + struct.pack("<I", 2),
            string("first.weight") + struct.pack("<I", 5),
            "5 dimensions",
            id="too many dimensions",
        ),
        pytest.param(
            string("first.weight") + struct.pack("<IQQ", 2, 4, 3),
            string("first.weight") + struct.pack("<IQQ", 2, 4, 1 << 61),
            "impossible dimensions",
            id="product of dimensions",
        ),
        pytest.param(
            string("first.weight") + struct.pack("<IQQ", 2, 4, 3),
            string("first.weight") + struct.pack("<IQQ", 2, 0, 3),
            "impossible dimensions",
            id="empty dimension",
        ),
        pytest.param(
            string("first.weight") + struct.pack("<IQQ", 2, 4, 3),
            string("first.weight") + struct.pack("<IQQ", 2, 4, 3000),
            "truncated",
            id="more elements than the file has",
        ),
        pytest.param(
            string("first.weight") + struct.pack("<IQQI", 2, 4, 3, 0),
            string("first.weight") + struct.pack("<IQQI", 2, 4, 3, 10),
            "Q2_K.*not supported",
            id="type of a tensor",
        ),
        pytest.param(
            string("first.weight") + struct.pack("<IQQI", 2, 4, 3, 0),
            string("first.weight") + struct.pack("<IQQI", 2, 4, 3, 8),
            "multiple of 32",
            id="rows that blocks do not fill",
        ),
        pytest.param(
            string("first.weight") + struct.pack("<IQQIQ", 2, 4, 3, 0, 0),
            string("first.weight") + struct.pack("<IQQIQ", 2, 4, 3, 0, 1 << 63),
            "truncated",
            id="place of a tensor",
        ),
        pytest.param(
            string("first.weight") + struct.pack("<IQQIQ", 2, 4, 3, 0, 0),
            string("first.weight") + struct.pack("<IQQIQ", 2, 4, 3, 0, 4),
            "alignment",
            id="place off the alignment",
        ),
    ],
)
def test_what_the_header_claims_is_checked(tmp_path: Path, old: bytes, new: bytes, message: str) -> None:
    path = write_small(tmp_path / "small.gguf")
    path.write_bytes(patch(path.read_bytes(), old, new))
    with pytest.raises(CheckpointError, match=message):
        GgufFile(path)


@pytest.mark.parametrize("alignment", [0, 3, 48])
def test_alignment_must_be_a_power_of_two(tmp_path: Path, alignment: int) -> None:
    path = write_small(tmp_path / "small.gguf")
    renamed = string("general.alignment") + struct.pack("<II", 4, alignment)
    data = path.read_bytes()
    start = data.index(string("a.text"))
    end = start + len(string("a.text")) + 4 + len("na\u00efve \u6771".encode()) + 8
    path.write_bytes(data[:start] + renamed + data[end:])
    with pytest.raises(CheckpointError, match="power of two"):
        GgufFile(path)


def test_damaged_bytes_never_raise_anything_else(tmp_path: Path, tiny_llama_dir: Path) -> None:
    """Whatever a flipped byte does, the reader, the facts and the tokenizer answer or name the file's
    fault."""
    path = write_gguf(tmp_path / "tiny.gguf", tiny_llama_dir)
    whole = path.read_bytes()
    header_end = min(tensor.offset for tensor in GgufFile(path).tensors.values())
    rng = random.Random(0)
    num_read, messages = 0, []
    for _ in range(400):
        data = bytearray(whole)
        for _ in range(rng.choice((1, 1, 4))):
            data[rng.randrange(header_end)] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        path.write_bytes(data)
        for call in (read_facts, read_tokenizer):
            try:
                call(path)
                num_read += 1
            except CheckpointError as error:
                messages.append(str(error))
    assert num_read > 50
    assert len(messages) > 50
    assert all(str(path) in message for message in messages)
