"""Streamed text over real tokenizers: whatever the ids, deltas join to what the tokenizer itself decodes."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from engine.frontend.detokenizer import IncrementalDetokenizer, TokenText, decode_whole
from engine.frontend.tokenizer import Tokenizer, read_tokenizer

TEXTS = [
    "Hello, world! It's 2024: 3,141 things.",
    "na\u00efve caf\u00e9 \u65e5\u672c\u8a9e \u041f\u0440\u0438\u0432\u0435\u0442",
    "\U0001f469\u200d\U0001f4bb \U0001f1f3\U0001f1f4!",
    "  two  blanks\n\n\ttab\r\nend ",
    "def f(x):\n    return x ** 2\n",
]


@pytest.fixture(params=["tiny_llama_dir", "tiny_mistral_dir", "tiny_qwen2_dir", "smollm2_path"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    path: Path = request.getfixturevalue(request.param)
    return read_tokenizer(path)


def stream(table: TokenText, token_ids: list[int]) -> str:
    detokenizer = IncrementalDetokenizer(table)
    return "".join([*map(detokenizer.feed, token_ids), detokenizer.finish()])


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_after_a_prompt_comes_back_whole(tokenizer: Tokenizer, text: str) -> None:
    table = TokenText(tokenizer)
    prompt = tokenizer.encode("The answer:")
    both = tokenizer.encode("The answer:" + text)
    assert both[: len(prompt)] == prompt
    assert stream(table, both[len(prompt) :]) == text


def test_random_ids_decode_alike_streamed_and_whole(tokenizer: Tokenizer) -> None:
    generator = random.Random(5)
    table = TokenText(tokenizer)
    # A first token that is plain text: at the very start of a text some tokenizers drop a blank.
    first = tokenizer.encode("a", add_special_tokens=False)
    for _ in range(300):
        ids = [generator.randrange(tokenizer.vocab_size) for _ in range(generator.randrange(40))]
        text = stream(table, ids)
        assert text == decode_whole(table, ids)
        data = b"".join(tokenizer.token_bytes(i) for i in ids if not tokenizer.is_special(i))
        assert text == data.decode("utf-8", "replace")
        if "\ufffd" not in text:
            prefix = tokenizer.decode(first)
            assert tokenizer.decode(first + ids) == prefix + text
