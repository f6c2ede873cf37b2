"""Stop strings in streamed text, against a reference that searches the whole text."""

from __future__ import annotations

import time

import pytest
from engine.frontend.stop_strings import StopScanner
from hypothesis import example, given, settings
from hypothesis import strategies as st

ALPHABET = "ab"


def run(pieces: list[str], stops: list[str], *, include: bool = False) -> tuple[list[str], str | None]:
    scanner = StopScanner(stops, include_stop=include)
    released = []
    for piece in pieces:
        text, stop = scanner.feed(piece)
        released.append(text)
        if stop is not None:
            return released, stop
    return [*released, scanner.finish()], None


def find_by_hand(pieces: list[str], stops: list[str]) -> tuple[int, str] | None:
    """The stop that starts first once any is complete, looked for after each piece; ties: the shortest."""
    text = ""
    for piece in pieces:
        text += piece
        found = [(text.find(stop), len(stop), stop) for stop in stops if stop in text]
        if found:
            start, _, stop = min(found)
            return start, stop
    return None


def test_no_part_of_a_stop_over_several_pieces_is_released() -> None:
    released, stop = run(["alpha ", "be", "ta ga", "mma", " delta"], ["beta gamma"])
    assert released == ["alpha ", "", "", ""]
    assert stop == "beta gamma"


def test_the_match_that_starts_first_wins_whatever_the_order_of_the_list() -> None:
    assert run(["abXcY"], ["Y", "X"]) == (["ab"], "X")
    assert run(["abXcY"], ["X", "Y"]) == (["ab"], "X")


def test_only_a_real_prefix_is_held_back() -> None:
    scanner = StopScanner(["###"])
    assert scanner.feed("a#") == ("a", None)
    assert scanner.feed("#b") == ("##b", None)
    assert scanner.feed("no stop here") == ("no stop here", None)


def test_held_text_comes_at_the_end() -> None:
    assert run(["go ST"], ["STOP"]) == (["go ", "ST"], None)


def test_the_stop_stays_where_asked_for_and_nothing_is_held_back() -> None:
    assert run(["x ST", "OP y"], ["STOP"], include=True) == (["x ST", "OP"], "STOP")


def test_a_match_that_may_not_stop_yet_is_plain_text() -> None:
    scanner = StopScanner(["."])
    assert scanner.feed(".", may_stop=False) == (".", None)
    assert scanner.feed(".", may_stop=False) == (".", None)
    assert scanner.feed(".") == ("", ".")


pieces_strategy = st.lists(st.text(ALPHABET, max_size=4), max_size=12)
stops_strategy = st.lists(st.text(ALPHABET, min_size=1, max_size=5), min_size=1, max_size=4)


@settings(max_examples=1500, deadline=None)
@given(pieces_strategy, stops_strategy)
@example(["aab"], ["ab", "aab"])
@example(["a", "b"], ["abb", "b"])
def test_any_pieces_and_stops_agree_with_a_search_of_the_whole_text(
    pieces: list[str], stops: list[str]
) -> None:
    whole = "".join(pieces)
    expected = find_by_hand(pieces, stops)
    released, stop = run(pieces, stops)
    if expected is None:
        assert (stop, "".join(released)) == (None, whole)
    else:
        assert (stop, "".join(released)) == (expected[1], whole[: expected[0]])


@settings(max_examples=500, deadline=None)
@given(pieces_strategy, stops_strategy)
def test_what_is_held_back_is_the_longest_end_that_begins_a_stop(pieces: list[str], stops: list[str]) -> None:
    scanner = StopScanner(stops)
    fed = released = ""
    for piece in pieces:
        text, stop = scanner.feed(piece)
        fed, released = fed + piece, released + text
        if stop is not None:
            return
        prefixes = [s[:k] for s in stops for k in range(1, len(s)) if fed.endswith(s[:k])]
        assert len(fed) - len(released) == max(map(len, prefixes), default=0)


@settings(max_examples=500, deadline=None)
@given(pieces_strategy, stops_strategy)
def test_with_the_stop_kept_the_text_ends_with_it(pieces: list[str], stops: list[str]) -> None:
    expected = find_by_hand(pieces, stops)
    released, stop = run(pieces, stops, include=True)
    whole = "".join(pieces)
    if expected is None:
        assert (stop, "".join(released)) == (None, whole)
    else:
        assert (stop, "".join(released)) == (expected[1], whole[: expected[0] + len(expected[1])])


@pytest.mark.parametrize("stop", ["a" * 1023 + "b", ("a" * 31 + "b") * 32])
def test_text_made_to_match_almost_costs_no_more_per_character(stop: str) -> None:
    scanner = StopScanner([stop] * 16)
    start_s = time.perf_counter()
    for _ in range(2000):
        assert scanner.feed("aaaa")[1] is None
    # 16 stops x 8,000 characters; a search that starts over at each of them takes minutes.
    assert time.perf_counter() - start_s < 2.0
