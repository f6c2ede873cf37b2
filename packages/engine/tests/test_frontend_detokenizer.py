"""Text out of tokens: byte exact at every border, streamed and whole alike."""

from __future__ import annotations

import random

import pytest
from engine.frontend.detokenizer import IncrementalDetokenizer, TokenText, decode_whole
from frontend_fakes import FIRST_PIECE, MARK, ByteTokenizer
from hypothesis import given, settings
from hypothesis import strategies as st

TEXTS = [
    "Hi \U0001f336!",
    "\U0001f469\u200d\U0001f4bb \U0001f1f3\U0001f1f4",
    "e\u0301 caf\u00e9 \u65e5\u672c\u8a9e \u0928\u092e\u0938\u094d\u0924\u0947",
    "\ufeffnul\x00 and \ufffd itself\r\n",
]


def table_of(*pieces: bytes) -> TokenText:
    return TokenText(ByteTokenizer(pieces))  # type: ignore[arg-type]


def stream(table: TokenText, token_ids: list[int], **options: bool) -> list[str]:
    detokenizer = IncrementalDetokenizer(table, **options)
    return [*map(detokenizer.feed, token_ids), detokenizer.finish()]


def stream_pieces(*pieces_hex: str) -> list[str]:
    pieces = [bytes.fromhex(piece) for piece in pieces_hex]
    return stream(table_of(*pieces), list(range(FIRST_PIECE, FIRST_PIECE + len(pieces))))


def test_a_character_over_four_tokens_comes_with_its_last_byte() -> None:
    deltas = stream_pieces("486920", "f0", "9f", "8c", "b6", "21")
    assert deltas == ["Hi ", "", "", "", "\U0001f336", "!", ""]


def test_a_character_cut_by_the_end_becomes_one_replacement() -> None:
    assert stream_pieces("6f6b20", "f09f") == ["ok ", "", "\ufffd"]


def test_bytes_that_can_never_be_a_character_become_replacements_at_once() -> None:
    assert stream_pieces("61", "ff", "62", "c3", "63") == ["a", "\ufffd", "b", "", "\ufffdc", ""]


def test_joiners_and_flags_pass_without_normalisation() -> None:
    deltas = stream_pieces("f09f91a9", "e2808d", "f09f92bb", "20f09f87b3", "f09f87b4")
    assert "".join(deltas) == "\U0001f469\u200d\U0001f4bb \U0001f1f3\U0001f1f4"


def test_the_first_generated_token_keeps_its_blank() -> None:
    assert "".join(stream_pieces("20717569636b", "20666f78")) == " quick fox"


@pytest.mark.parametrize(("skips", "text"), [(True, "ab"), (False, "a<|mark|>b")])
def test_special_tokens_are_text_only_where_asked_for(skips: bool, text: str) -> None:
    assert decode_whole(table_of(), [97, MARK, 98], skip_special_tokens=skips) == text


@pytest.mark.parametrize(("spaced", "text"), [(True, "<|mark|> <|mark|>a"), (False, "<|mark|><|mark|>a")])
def test_special_tokens_side_by_side_take_a_space_where_asked_for(spaced: bool, text: str) -> None:
    token_ids = [MARK, MARK, 97]
    options = {"skip_special_tokens": False, "spaces_between_special_tokens": spaced}
    assert decode_whole(table_of(), token_ids, **options) == text
    assert "".join(stream(table_of(), token_ids, **options)) == text


@pytest.mark.parametrize("text", TEXTS)
def test_any_split_of_a_text_into_tokens_gives_the_text(text: str) -> None:
    data = text.encode()
    generator = random.Random(7)
    for _ in range(200):
        borders = sorted(generator.sample(range(1, len(data)), generator.randrange(len(data))))
        pieces = [data[a:b] for a, b in zip([0, *borders], [*borders, len(data)], strict=True)]
        token_ids = list(range(FIRST_PIECE, FIRST_PIECE + len(pieces)))
        assert "".join(stream(table_of(*pieces), token_ids)) == text


@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(0, 400), max_size=60), st.booleans(), st.booleans())
def test_deltas_of_random_ids_join_to_the_whole_text(ids: list[int], skips: bool, spaced: bool) -> None:
    table = table_of()
    options = {"skip_special_tokens": skips, "spaces_between_special_tokens": spaced}
    assert "".join(stream(table, ids, **options)) == decode_whole(table, ids, **options)
    if skips:
        data = b"".join(bytes([i]) for i in ids if i < 256)
        assert decode_whole(table, ids) == data.decode("utf-8", "replace")


def test_ids_past_the_vocabulary_are_no_text_and_negative_ones_an_error() -> None:
    table = table_of()
    assert decode_whole(table, [97, 5000, 98]) == "ab"
    with pytest.raises(ValueError, match="-1"):
        decode_whole(table, [-1])
