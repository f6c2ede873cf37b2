"""A tokenizer built from the metadata of a GGUF file, which carries a vocabulary but no tokenizer.json.

Two kinds are built: byte-level BPE (`gpt2`), whose way of cutting text into words the file only names, and
SentencePiece BPE (`llama`), whose merges follow from the scores. Knows nothing of chat templates.

Source: the splits are those of the models' own tokenizer.json files; the names are llama.cpp's
(`tokenizer.ggml.pre`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from engine.config.gguf_config import get_token_id
from engine.config.gguf_file import GgufFile
from engine.frontend.token_bytes import SPACE_MARK, get_byte_alphabet
from engine.types.errors import CheckpointError

_NORMAL, _CONTROL, _USER_DEFINED = 1, 3, 4
"""Token types: pieces of text, special tokens, and text that is matched whole before anything is cut."""

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS_AND_SPACES = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_WORDS_AND_SPACES}"
_QWEN2 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_WORDS_AND_SPACES}"
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_OTHER = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|\p{{N}}|{_OTHER}"
)

_SPLITS = {
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "llama-bpe": _LLAMA3,
    "falcon3": _LLAMA3,
    "smaug-bpe": _LLAMA3,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "megrez": _QWEN2,
    "tekken": _TEKKEN,
}
"""Regular expressions whose matches are the words, for vocabularies that bring their own."""
_GPT2_NAMES = ("default", "gpt-2", "gpt2", "mpt", "olmo", "jais", "phi-2", "roberta-bpe")
"""Vocabularies that cut text as GPT-2 does."""
_SINGLE_DIGIT_NAMES = ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone")
"""The same, with every digit a word of its own first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufVocabulary:
    """A built tokenizer and the special tokens that the file names."""

    backend: Backend
    bos_token_id: int | None
    eos_token_id: int | None
    pad_token_id: int | None
    unk_token_id: int | None


def build_from_gguf(file: GgufFile) -> GgufVocabulary:
    """Return the tokenizer that a file describes.

    Raises:
        CheckpointError: its kind is not supported, or its lists do not fit together.
    """
    kind = file.metadata.get("tokenizer.ggml.model")
    tokens = file.get_strings("tokenizer.ggml.tokens")
    types = file.get_numbers("tokenizer.ggml.token_type").tolist() or [_NORMAL] * len(tokens)
    if len(types) != len(tokens):
        raise _error(file, f"has {len(tokens)} tokens but {len(types)} token types")
    if kind == "gpt2":
        backend = _build_byte_level(file, tokens, types)
    elif kind == "llama":
        backend = _build_sentence_piece(file, tokens)
    else:
        raise _error(file, f"has a tokenizer of kind {kind!r}, which is not supported (gpt2 and llama are)")
    named = {
        name: _check_id(file, tokens, f"{name}_token_id")
        for name in ("bos", "eos", "eot", "padding", "unknown")
    }
    _add_tokens(backend, tokens, types, [i for i in named.values() if i is not None])
    _add_post_processor(backend, file, tokens, named, is_sentence_piece=kind == "llama")
    return GgufVocabulary(
        backend=backend,
        bos_token_id=named["bos"],
        eos_token_id=named["eos"],
        pad_token_id=named["padding"],
        unk_token_id=named["unknown"],
    )


def _build_byte_level(file: GgufFile, tokens: list[str], types: list[int]) -> Backend:
    alphabet = get_byte_alphabet()
    known = set(alphabet.values())
    vocabulary: dict[str, int] = {}
    for token_id, (token, kind) in enumerate(zip(tokens, types, strict=True)):
        if kind not in (_CONTROL, _USER_DEFINED) and not known.issuperset(token):
            # Some converters write ordinary tokens as plain text; a merge can only find the spelling.
            token = "".join(alphabet[byte] for byte in token.encode("utf-8"))
        vocabulary.setdefault(token, token_id)
    merges = [_split_merge(file, merge) for merge in file.get_strings("tokenizer.ggml.merges")]
    backend = Backend(_build_bpe(file, vocab=vocabulary, merges=merges))
    name = file.metadata.get("tokenizer.ggml.pre", "default")
    if name in _SPLITS:
        steps = [
            pre_tokenizers.Split(Regex(_SPLITS[name]), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    elif name in _SINGLE_DIGIT_NAMES:
        steps = [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    elif name in _GPT2_NAMES:
        steps = [pre_tokenizers.ByteLevel(add_prefix_space=False)]
    else:
        raise _error(
            file,
            f"cuts text into words as {name!r} (tokenizer.ggml.pre), which is not known; set model.tokenizer "
            "to a "
            "folder with the model's tokenizer.json",
        )
    backend.pre_tokenizer = steps[0] if len(steps) == 1 else pre_tokenizers.Sequence(steps)
    backend.decoder = decoders.ByteLevel()
    return backend


def _build_sentence_piece(file: GgufFile, tokens: list[str]) -> Backend:
    vocabulary: dict[str, int] = {}
    for token_id, token in enumerate(tokens):
        vocabulary.setdefault(token, token_id)
    written = file.get_strings("tokenizer.ggml.merges")
    if written:
        merges = [_split_merge(file, merge) for merge in written]
    else:
        scores = file.get_numbers("tokenizer.ggml.scores").tolist()
        if len(scores) != len(tokens):
            raise _error(file, f"has {len(tokens)} tokens but {len(scores)} scores")
        merges = _derive_merges(vocabulary, scores)
    unknown = get_token_id(file, "unknown_token_id")
    unk_token = tokens[unknown] if unknown is not None and unknown < len(tokens) else None
    backend = Backend(
        _build_bpe(
            file, vocab=vocabulary, merges=merges, unk_token=unk_token, fuse_unk=True, byte_fallback=True
        )
    )
    steps: list[decoders.Decoder] = [
        decoders.Replace(SPACE_MARK, " "),
        decoders.ByteFallback(),
        decoders.Fuse(),
    ]
    has_prefix_space = bool(file.metadata.get("tokenizer.ggml.add_space_prefix", True))
    if has_prefix_space:
        steps.append(decoders.Strip(content=" ", left=1))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(
        replacement=SPACE_MARK, prepend_scheme="first" if has_prefix_space else "never", split=False
    )
    backend.decoder = decoders.Sequence(steps)
    return backend


def _derive_merges(vocabulary: dict[str, int], scores: list[float]) -> list[tuple[str, str]]:
    """Return the merges that lead to each piece, best score first.

    SentencePiece joins the neighbours whose piece has the best score; as merges, every way to cut a piece
    into two pieces takes the piece's rank.
    """
    found: list[tuple[float, int, int, int, int, str, str]] = []
    for piece, piece_id in vocabulary.items():
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            left_id, right_id = vocabulary.get(left), vocabulary.get(right)
            if left_id is not None and right_id is not None:
                # Among equal scores: longer left parts first, as the conversion to tokenizer.json orders
                # them.
                found.append((-scores[piece_id], -len(left), -len(right), left_id, right_id, left, right))
    found.sort()
    return [(left, right) for *_, left, right in found]


def _build_bpe(file: GgufFile, **settings: Any) -> models.BPE:  # arguments of the library's model
    try:
        return models.BPE(**settings)
    except Exception as error:  # the library raises its base class: a merge of pieces that are no tokens
        raise _error(file, f"has a vocabulary and merges that do not fit together ({error})") from error


def _split_merge(file: GgufFile, merge: str) -> tuple[str, str]:
    left, separator, right = merge.partition(" ")
    if not separator or " " in right:
        raise _error(file, f"has the merge {merge!r}, which is no pair")
    return left, right


def _check_id(file: GgufFile, tokens: list[str], name: str) -> int | None:
    token_id = get_token_id(file, name)
    if token_id is not None and not 0 <= token_id < len(tokens):
        raise _error(file, f"has tokenizer.ggml.{name}={token_id}, but {len(tokens)} tokens")
    return token_id


def _add_tokens(backend: Backend, tokens: list[str], types: list[int], named_ids: list[int]) -> None:
    special = [i for i, kind in enumerate(types) if kind == _CONTROL]
    special += [i for i in named_ids if types[i] != _CONTROL]
    backend.add_special_tokens([AddedToken(tokens[i], normalized=False, special=True) for i in special])
    ordinary = [i for i, kind in enumerate(types) if kind == _USER_DEFINED and i not in named_ids]
    backend.add_tokens([AddedToken(tokens[i], normalized=False, special=False) for i in ordinary])


def _add_post_processor(
    backend: Backend,
    file: GgufFile,
    tokens: list[str],
    named: dict[str, int | None],
    *,
    is_sentence_piece: bool,
) -> None:
    # Older files have no flag; a SentencePiece vocabulary gets its begin token then.
    adds_bos = bool(file.metadata.get("tokenizer.ggml.add_bos_token", is_sentence_piece))
    adds_eos = bool(file.metadata.get("tokenizer.ggml.add_eos_token", False))
    bos = named["bos"] if adds_bos else None
    eos = named["eos"] if adds_eos else None
    single = [f"{tokens[bos]}:0"] if bos is not None else []
    single += ["$A:0"]
    single += [f"{tokens[eos]}:0"] if eos is not None else []
    ids = {tokens[token_id]: token_id for token_id in (bos, eos) if token_id is not None}
    backend.post_processor = processors.TemplateProcessing(
        single=single, pair=[*single, "$B:1"], special_tokens=list(ids.items())
    )


def _error(file: GgufFile, what: str) -> CheckpointError:
    return CheckpointError(f"{file.path} {what}.")
