"""The output of a constrained request that must call: one JSON list of calls and nothing else."""

from __future__ import annotations

from parsers.json_calls import JsonCallParser


class RequiredToolParser(JsonCallParser):
    """Reads `[{"name": ..., "parameters": {...}}]`, or one such object."""

    openers = ("[", "{")

    def _is_prose(self, opener: str, num_calls: int) -> bool:
        # The grammar allows calls alone, so a cut one is a cut call and never an answer.
        return False
