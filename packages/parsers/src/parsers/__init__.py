"""Incremental tool-call and reasoning parsers: text in, events out. Needs msgspec and nothing else."""

from parsers import reasoning, tool
from parsers.answer import Answer, Call, collect
from parsers.base import Parser, ParserError
from parsers.events import (
    ParserEvent,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
    join_events,
)
from parsers.pipeline import compose, parse
from parsers.tool_spec import ToolSpec

__all__ = [
    "Answer",
    "Call",
    "Parser",
    "ParserError",
    "ParserEvent",
    "ReasoningDelta",
    "TextDelta",
    "ToolCallDelta",
    "ToolCallEnd",
    "ToolCallStart",
    "ToolSpec",
    "collect",
    "compose",
    "join_events",
    "parse",
    "reasoning",
    "tool",
]
