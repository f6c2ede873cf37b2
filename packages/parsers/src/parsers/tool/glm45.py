"""GLM-4.5 to 4.7 calls: `<tool_call>NAME<arg_key>K</arg_key><arg_value>value</arg_value></tool_call>`."""

from __future__ import annotations

from parsers.cursor import Step
from parsers.tagged import Parameter, TaggedParser

_MAX_KEY_LEN = 256


class Glm45ToolParser(TaggedParser):
    """Reads one call for each `<tool_call>`; line breaks between the tags come and go with the version."""

    aliases = ("glm47", "glm4_moe", "glm")
    block_open = call_open = "<tool_call>"
    block_close = call_close = "</tool_call>"
    param_open = "<arg_key>"
    param_close = "</arg_value>"
    openers = (block_open,)
    markers = (block_open, block_close, param_open, "</arg_key>", "<arg_value>", param_close)

    def _read_block(self, opener: str) -> Step[None]:
        cursor = self._cursor
        yield from cursor.space()
        name = yield from cursor.word("<", "\n", " ")
        yield from cursor.space()
        # Only what follows tells a call from the tag in prose.
        tag = yield from cursor.expect(self.param_open, self.block_close)
        self._start_call(name)
        yield from self._read_parameters(name, tag)
        self._end_call()

    @property
    def _ends_of_all(self) -> tuple[str, ...]:
        # Nothing closes the function but the block, which alone is too weak to end a value.
        return ()

    def _read_parameter_head(self) -> Step[Parameter]:
        name = yield from self._cursor.bounded("</arg_key>", _MAX_KEY_LEN)
        yield from self._cursor.space()
        yield from self._cursor.expect("<arg_value>")
        return Parameter(name.strip())
