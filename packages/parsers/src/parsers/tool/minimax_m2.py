"""MiniMax-M2 calls: `<minimax:tool_call><invoke name="N"><parameter name="K">value</parameter></invoke>`."""

from __future__ import annotations

from parsers.cursor import Step
from parsers.tagged import Parameter, TaggedParser


class MinimaxM2ToolParser(TaggedParser):
    """Reads invoke tags inside `<minimax:tool_call>`."""

    block_open = "<minimax:tool_call>"
    block_close = "</minimax:tool_call>"
    call_open = '<invoke name="'
    call_close = "</invoke>"
    param_open = '<parameter name="'
    param_close = "</parameter>"
    openers = (block_open,)
    markers = (block_open, block_close)

    def _read_name(self) -> Step[str]:
        name = yield from self._cursor.word('"')
        yield from self._cursor.expect('">')
        return name

    def _read_parameter_head(self) -> Step[Parameter]:
        name = yield from self._cursor.bounded('">', 256)
        return Parameter(name)
