"""What a parser needs to know of a tool: its name and the schema of its parameters.

It reads OpenAI's tool objects and does not validate the schema; whoever takes the request does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import msgspec

from parsers.base import ParserError

# JSON schema is open-ended JSON, hence Any.
Schema: TypeAlias = Mapping[str, Any]


class ToolSpec(msgspec.Struct, frozen=True):
    """A function that the model may call."""

    name: str
    parameters: dict[str, Any] = {}

    def schema_of(self, parameter: str) -> Schema | None:
        """Return the schema of one parameter, None if the tool does not declare it."""
        properties = self.parameters.get("properties")
        schema = properties.get(parameter) if isinstance(properties, Mapping) else None
        return schema if isinstance(schema, Mapping) else None


ToolLike: TypeAlias = ToolSpec | Mapping[str, Any]


def read_tools(tools: Iterable[ToolLike]) -> dict[str, ToolSpec]:
    """Return the tools by name.

    Args:
        tools: `ToolSpec`s, OpenAI tool objects, or their `function` parts.

    Raises:
        ParserError: if one has no name or its parameters are no object.
    """
    specs = (_read_tool(tool) for tool in tools)
    return {spec.name: spec for spec in specs}


def _read_tool(tool: ToolLike) -> ToolSpec:
    if isinstance(tool, ToolSpec):
        return tool
    function = tool.get("function", tool) if isinstance(tool, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(name, str) or not name:
        raise ParserError(
            f"tools: {tool!r} has no function name; give {{'type': 'function', 'function': {{'name': ...}}}}"
        )
    parameters = function.get("parameters") or {}
    if not isinstance(parameters, Mapping):
        raise ParserError(f"tools: parameters of {name!r} are {parameters!r}; give a JSON schema object")
    return ToolSpec(name, dict(parameters))
