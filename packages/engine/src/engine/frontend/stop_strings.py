"""Finds stop strings in streamed text and holds back exactly what may still become one.

Each stop string keeps how many of its characters the text's end matches (Knuth, Morris, Pratt), so the cost
of a delta grows with the delta alone and the text held back is always a real prefix of a stop string. Knows
nothing of tokens; the caller says when a stop may not end the text yet.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopScanner:
    """Scans the text of one sequence.

    Args:
        stops: non-empty strings.
        include_stop: keep the stop string in the text; then nothing is held back.
    """

    __slots__ = ("_held", "_include_stop", "_patterns")

    def __init__(self, stops: Sequence[str], *, include_stop: bool = False) -> None:
        self._patterns = [_Pattern(stop) for stop in stops]
        self._include_stop = include_stop
        self._held = ""

    def feed(self, text: str, *, may_stop: bool = True) -> tuple[str, str | None]:
        """Take the next piece of text; return the text to release and the stop string found, or None.

        Of several matches the one that starts first wins, and of those the shortest. After a match the
        scanner is done. With `may_stop=False` matches that end in this piece count as plain text.
        """
        best: tuple[int, int, str] | None = None  # start (may lie in the held text: negative), end, stop
        longest_prefix = 0
        for pattern in self._patterns:
            end = pattern.scan(text, may_stop)
            if end >= 0:
                match = (end - len(pattern.stop), end, pattern.stop)
                best = match if best is None else min(best, match)
            longest_prefix = max(longest_prefix, pattern.num_matched)
        if self._include_stop:
            return (text, None) if best is None else (text[: best[1]], best[2])
        buffer = self._held + text
        if best is not None:
            release = buffer[: len(self._held) + best[0]]
            self._held = ""
            return release, best[2]
        border = len(buffer) - longest_prefix
        self._held = buffer[border:]
        return buffer[:border], None

    def finish(self) -> str:
        """Return the text still held back: the end came before a stop string was complete."""
        held, self._held = self._held, ""
        return held


class _Pattern:
    """One stop string and how much of it stands at the end of the text so far."""

    __slots__ = ("fallback", "num_matched", "stop")

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.num_matched = 0
        self.fallback = _compute_fallback(stop)

    def scan(self, text: str, may_stop: bool) -> int:
        """Return the index in `text` just after the first match, or -1."""
        stop, fallback, matched = self.stop, self.fallback, self.num_matched
        i, end = 0, len(text)
        while i < end:
            if matched == 0:
                i = text.find(stop[0], i)
                if i < 0:
                    break
                matched = 1
            else:
                while matched and stop[matched] != text[i]:
                    matched = fallback[matched - 1]
                if stop[matched] == text[i]:
                    matched += 1
            i += 1
            if matched == len(stop):
                matched = fallback[matched - 1]
                if may_stop:
                    self.num_matched = matched
                    return i
        self.num_matched = matched
        return -1


def _compute_fallback(stop: str) -> list[int]:
    """Entry i: length of the longest proper prefix of `stop[:i + 1]` that is also its suffix."""
    fallback = [0] * len(stop)
    length = 0
    for i in range(1, len(stop)):
        while length and stop[i] != stop[length]:
            length = fallback[length - 1]
        if stop[i] == stop[length]:
            length += 1
        fallback[i] = length
    return fallback
