"""The tool-call formats, one file each; `create` finds them by name or alias."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from parsers.catalog import find_option, option_names
from parsers.tool_parser import ToolParser
from parsers.tool_spec import ToolLike

__all__ = ["create", "find", "names"]


def create(
    name: str,
    tools: Iterable[ToolLike] = (),
    *,
    make_id: Callable[[], str] | None = None,
    marker_ids: Mapping[str, int] | None = None,
) -> ToolParser:
    """Return a parser for one answer in the format `name`.

    Args:
        name: a file of this folder, or an alias of one.
        tools: what the model may call, as OpenAI tool objects or `ToolSpec`s.
        make_id: gives the ids of calls; random by default.
        marker_ids: see `FormatParser`.

    Raises:
        ParserError: if there is no such format, or a tool has no name.
    """
    return find(name)(tools, make_id=make_id, marker_ids=marker_ids)


def find(name: str) -> type[ToolParser]:
    """Return the parser class of the format `name`.

    Raises:
        ParserError: if there is none.
    """
    return find_option(__name__, name, ToolParser)  # type: ignore[type-abstract]


def names() -> tuple[str, ...]:
    """Return the names of all formats, without aliases."""
    return option_names(__name__)
