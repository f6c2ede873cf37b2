"""The tokenizer: text to token ids and back, from tokenizer.json or from a GGUF file's metadata.

One object serves all threads: nothing of it changes after it is built, so it needs no lock and never finds
itself "already borrowed". Vocabulary, merges and splits are the `tokenizers` library's work; transformers is
not needed. Knows nothing of requests and of chat messages.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from engine.config.checkpoint import read_chat_template, read_json
from engine.config.engine_config import EngineConfig
from engine.config.gguf_file import GgufFile
from engine.frontend.gguf_tokenizer import build_from_gguf
from engine.frontend.token_bytes import choose_piece_to_bytes
from engine.types.errors import CheckpointError

TOKENIZER_FILE = "tokenizer.json"
TOKENIZER_CONFIG_FILE = "tokenizer_config.json"
NAMED_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token")
"""Roles that checkpoints name tokens for."""


class Tokenizer:
    """One vocabulary with what the checkpoint says of its special tokens; safe to use from many threads.

    Args:
        backend: complete; not changed any more, by anybody.
        named: special tokens by role: `bos_token`, `eos_token`, `pad_token`, `unk_token`.
        chat_template: the checkpoint's Jinja text.

    Attributes:
        vocab_size: ids run below this.
        special_token_ids: ids that are no text of their own and that `skip_special_tokens` leaves out.
    """

    def __init__(
        self, backend: Backend, *, named: Mapping[str, str | None], chat_template: str | None = None
    ) -> None:
        self._backend = backend
        self._piece_to_bytes = choose_piece_to_bytes(backend)
        self._added_tokens: dict[int, AddedToken] = backend.get_added_tokens_decoder()
        self.vocab_size: int = max(
            backend.get_vocab_size(with_added_tokens=False), max(self._added_tokens, default=-1) + 1
        )
        self.special_token_ids = frozenset(i for i, token in self._added_tokens.items() if token.special)
        self.bos_token = named.get("bos_token")
        self.eos_token = named.get("eos_token")
        self.pad_token = named.get("pad_token")
        self.unk_token = named.get("unk_token")
        self.bos_token_id = self._find(self.bos_token)
        eos_token_id = self._find(self.eos_token)
        self.eos_token_ids = [] if eos_token_id is None else [eos_token_id]
        self.chat_template = chat_template

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the token ids of a text.

        Args:
            add_special_tokens: let the tokenizer put its begin and end tokens around the text.
        """
        ids: list[int] = self._backend.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def decode(
        self,
        token_ids: Sequence[int],
        *,
        skip_special_tokens: bool = True,
        spaces_between_special_tokens: bool = False,
    ) -> str:
        """Return the text of a whole sequence; ids outside the vocabulary stand for nothing.

        Args:
            skip_special_tokens: leave special tokens out.
            spaces_between_special_tokens: where they are kept, put one space between two that follow each
                other.
        """
        if skip_special_tokens or not spaces_between_special_tokens:
            return self._decode(token_ids, skip_special_tokens)
        text: list[str] = []
        run: list[int] = []
        for token_id in token_ids:
            if run and token_id in self.special_token_ids and run[-1] in self.special_token_ids:
                text.append(self._decode(run, False))
                run = []
            run.append(token_id)
        return " ".join([*text, self._decode(run, False)])

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes that a token adds in the middle of a text; nothing for an id without a token."""
        added = self._added_tokens.get(token_id)
        if added is not None:
            return added.content.encode("utf-8")
        piece = self._backend.id_to_token(token_id)
        return b"" if piece is None else self._piece_to_bytes(piece)

    def token_string(self, token_id: int) -> str:
        """Return a token as the vocabulary spells it; empty for an id without a token."""
        return self._backend.id_to_token(token_id) or ""

    def is_special(self, token_id: int) -> bool:
        """True for a token that is no text of its own."""
        return token_id in self.special_token_ids

    def _find(self, token: str | None) -> int | None:
        return None if token is None else self._backend.token_to_id(token)

    def _decode(self, token_ids: Sequence[int], skip_special_tokens: bool) -> str:
        text: str = self._backend.decode(list(token_ids), skip_special_tokens=skip_special_tokens)
        return text


def load_tokenizer(config: EngineConfig) -> Tokenizer | None:
    """Return the tokenizer of a resolved configuration, or None where the checkpoint has none.

    Raises:
        CheckpointError: there is one but it cannot be read, or the one that `model.tokenizer` names is
            missing.
    """
    if config.model.tokenizer is not None:
        return read_tokenizer(Path(config.model.tokenizer).expanduser().absolute())
    facts = config.checkpoint
    if facts is None or not facts.has_tokenizer:
        return None
    return read_tokenizer(Path(facts.path))


def read_tokenizer(path: Path) -> Tokenizer:
    """Return the tokenizer in a folder, in a tokenizer.json, or in a .gguf file.

    Raises:
        CheckpointError: there is none, or it cannot be read.
    """
    if path.suffix == ".gguf":
        return _read_gguf(path)
    file = path / TOKENIZER_FILE if path.is_dir() else path
    if not file.is_file():
        raise CheckpointError(
            f"{path} holds no tokenizer; give a folder with tokenizer.json, that file, or a .gguf file."
        )
    try:
        backend = Backend.from_file(str(file))
    except Exception as error:  # the library raises its base class for whatever is wrong with a file
        raise CheckpointError(f"{file} is no tokenizer that can be read: {error}.") from error
    # Files of embedding models say how to pad and cut a batch; a prompt is taken as it is. What the file puts
    # around a text stays: beside a tokenizer.json, flags such as add_bos_token are not looked at.
    backend.no_truncation()
    backend.no_padding()
    config_file = file.parent / TOKENIZER_CONFIG_FILE
    settings = read_json(config_file) if config_file.is_file() else {}
    named = {name: _content(settings.get(name)) for name in NAMED_TOKENS}
    _add_configured_tokens(backend, settings, named)
    return Tokenizer(backend, named=named, chat_template=read_chat_template(file.parent))


def _read_gguf(path: Path) -> Tokenizer:
    file = GgufFile(path)
    if "tokenizer.ggml.tokens" not in file.metadata:
        raise CheckpointError(
            f"{path} holds no tokenizer; set model.tokenizer to a folder with tokenizer.json."
        )
    vocabulary = build_from_gguf(file)
    spell = functools.partial(_spell, vocabulary.backend)
    template = file.metadata.get("tokenizer.chat_template")
    return Tokenizer(
        vocabulary.backend,
        named={
            "bos_token": spell(vocabulary.bos_token_id),
            "eos_token": spell(vocabulary.eos_token_id),
            "pad_token": spell(vocabulary.pad_token_id),
            "unk_token": spell(vocabulary.unk_token_id),
        },
        chat_template=template if isinstance(template, str) and template else None,
    )


def _spell(backend: Backend, token_id: int | None) -> str | None:
    return None if token_id is None else backend.id_to_token(token_id)


def _content(value: object) -> str | None:
    """Return the text of a token as configurations write it: a string, or an object with its flags."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) and value else None


def _add_configured_tokens(
    backend: Backend, settings: Mapping[str, Any], named: Mapping[str, str | None]
) -> None:
    """Mark as special what only tokenizer_config.json calls special; nothing new enters the vocabulary."""
    listed = settings.get("additional_special_tokens") or settings.get("extra_special_tokens") or ()
    values = [*named.values(), *(map(_content, listed) if isinstance(listed, list) else ())]
    known = {token.content for token in backend.get_added_tokens_decoder().values() if token.special}
    missing = [value for value in values if value is not None and value not in known]
    backend.add_special_tokens(
        [
            AddedToken(token, normalized=False, special=True)
            for token in dict.fromkeys(missing)
            if backend.token_to_id(token) is not None
        ]
    )
