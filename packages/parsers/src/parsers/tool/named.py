"""The output of a constrained request that must call one named function: its arguments and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from parsers.base import ParserError
from parsers.cursor import Step, Truncated
from parsers.scanner import Markers
from parsers.tool_parser import ToolParser
from parsers.tool_spec import ToolLike


class NamedToolParser(ToolParser):
    """Reads one JSON object as the arguments of the one tool given."""

    def __init__(
        self,
        tools: Iterable[ToolLike] = (),
        *,
        make_id: Callable[[], str] | None = None,
        marker_ids: Mapping[str, int] | None = None,
    ) -> None:
        """Make a parser for one answer.

        Args:
            tools: exactly the tool to call.
            make_id: gives the id of the call; random by default.
            marker_ids: see `FormatParser`.

        Raises:
            ParserError: if `tools` is not one tool.
        """
        super().__init__(tools, make_id=make_id, marker_ids=marker_ids)
        if len(self._tools) != 1:
            raise ParserError(
                f"tools: {sorted(self._tools)!r} given; the parser 'named' needs the one tool to call"
            )
        (self._name,) = self._tools

    def _parse(self) -> Step[None]:
        space = yield from self._cursor.space()
        if (yield from self._cursor.peek()) == "{":
            try:
                yield from self._read_json_arguments(self._name)
            except Truncated:
                return
        elif space:
            self._text(space)
        yield from self._cursor.until(Markers(), self._text)
        self._end_text()
