"""Seed-OSS thinking: `<seed:think>`."""

from __future__ import annotations

from parsers.reasoning_parser import ReasoningParser


class SeedOssReasoningParser(ReasoningParser):
    """Reads a block under Seed's own tag."""

    pairs = (("<seed:think>", "</seed:think>"),)
