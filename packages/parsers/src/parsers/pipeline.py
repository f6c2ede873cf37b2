"""Reading a whole answer: reasoning first, then calls in what is left.

The reasoning parser's text is the tool parser's input; a format that carries both in one stands alone.
Knows no format.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from parsers import reasoning as reasoning_options
from parsers import tool as tool_options
from parsers.base import Parser
from parsers.events import ParserEvent, TextDelta, join_events
from parsers.tool_spec import ToolLike


class Pipeline(Parser):
    """Two parsers in a row, fed and finished as one."""

    def __init__(self, reasoning: Parser, tool: Parser) -> None:
        self._reasoning = reasoning
        self._tool = tool

    @property
    def num_unread(self) -> int:
        """How many characters both hold back."""
        return self._reasoning.num_unread + self._tool.num_unread

    def feed(self, text: str, token_ids: Sequence[int] | None = None) -> list[ParserEvent]:
        """See `Parser.feed`."""
        # The tool parser hears of the tokens even if the text behind them is not yet let through.
        events = self._tool.feed("", token_ids)
        return join_events(events + self._pass_on(self._reasoning.feed(text, token_ids), token_ids))

    def finish(self, finish_reason: str | None = "stop") -> list[ParserEvent]:
        """See `Parser.finish`."""
        events = self._pass_on(self._reasoning.finish(finish_reason), None)
        return join_events(events + self._tool.finish(finish_reason))

    def _pass_on(self, events: Iterable[ParserEvent], token_ids: Sequence[int] | None) -> list[ParserEvent]:
        passed: list[ParserEvent] = []
        nothing_new = None if token_ids is None else ()
        for event in events:
            passed += self._tool.feed(event.text, nothing_new) if isinstance(event, TextDelta) else [event]
        return passed


def compose(reasoning: Parser | None = None, tool: Parser | None = None) -> Parser | None:
    """Return one parser that does what both do; None for none."""
    if reasoning is None or tool is None:
        return tool or reasoning
    if tool.reads_everything:
        return tool
    return reasoning if reasoning.reads_everything else Pipeline(reasoning, tool)


def parse(
    text: str,
    tool: str | Parser | None = None,
    reasoning: str | Parser | None = None,
    tools: Iterable[ToolLike] = (),
    finish_reason: str | None = "stop",
) -> list[ParserEvent]:
    """Return the events of a whole answer.

    Args:
        text: what the model wrote.
        tool: name of the tool format, or a fresh parser; None to leave calls as text.
        reasoning: name of the reasoning format, or a fresh parser; None to leave thinking as text.
        tools: what the model may call, where `tool` is a name.
        finish_reason: see `Parser.finish`.

    Raises:
        ParserError: if a name is unknown or a tool has no name.
    """
    tool_parser = tool_options.create(tool, tools=tools) if isinstance(tool, str) else tool
    reasoning_parser = reasoning_options.create(reasoning) if isinstance(reasoning, str) else reasoning
    parser = compose(reasoning_parser, tool_parser)
    if parser is None:
        return [TextDelta(text)] if text else []
    return join_events(parser.feed(text) + parser.finish(finish_reason))
