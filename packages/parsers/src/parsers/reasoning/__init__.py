"""The reasoning formats, one file each; `create` finds them by name or alias."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from parsers.base import Parser
from parsers.catalog import find_option, option_names

__all__ = ["create", "find", "names"]


def create(
    name: str,
    *,
    thinking: bool | None = None,
    prompt_tail: str | None = None,
    marker_ids: Mapping[str, int] | None = None,
) -> Parser:
    """Return a parser for one answer in the format `name`.

    Args:
        name: a file of this folder, or an alias of one.
        thinking: True if the prompt has opened the block of thinking, False if it has closed it or thinking
            is off.
        prompt_tail: the end of the prompt, from which `thinking` is read where it is None.
        marker_ids: see `FormatParser`.

    Raises:
        ParserError: if there is no such format.
    """
    # Any: the two kinds of class here share this constructor, but no base with it.
    option = cast(Any, find(name))
    return cast(Parser, option(thinking=thinking, prompt_tail=prompt_tail, marker_ids=marker_ids))


def find(name: str) -> type[Parser]:
    """Return the parser class of the format `name`.

    Raises:
        ParserError: if there is none.
    """
    return find_option(__name__, name, Parser)  # type: ignore[type-abstract]


def names() -> tuple[str, ...]:
    """Return the names of all formats, without aliases."""
    return option_names(__name__)
