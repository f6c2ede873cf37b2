"""DeepSeek's DSML: invoke and parameter tags whose `string` attribute says what a value is.

`string="true"` keeps the text as it stands, `string="false"` holds JSON. V3.2 and V4 differ in the block
around it.
"""

from __future__ import annotations

from typing import ClassVar

from parsers.coerce import coerce
from parsers.cursor import Step
from parsers.partial_json import dumps, mend
from parsers.tagged import Parameter, TaggedParser
from parsers.tool_spec import ToolSpec

_DSML = "\uff5cDSML\uff5c"
_MAX_KEY_LEN = 256


def dsml_tag(name: str, is_closing: bool = False) -> str:
    """Return a bare DSML tag."""
    return f"<{'/' if is_closing else ''}{_DSML}{name}>"


class DsmlParser(TaggedParser):
    """Reads invoke tags; subclasses name the block."""

    call_open = f'<{_DSML}invoke name="'
    call_close: ClassVar[str] = dsml_tag("invoke", is_closing=True)
    param_open = f'<{_DSML}parameter name="'
    param_close: ClassVar[str] = dsml_tag("parameter", is_closing=True)

    def _read_name(self) -> Step[str]:
        name = yield from self._cursor.word('"')
        yield from self._cursor.expect('">')
        return name

    def _read_parameter_head(self) -> Step[Parameter]:
        name = yield from self._cursor.bounded('"', _MAX_KEY_LEN)
        ending = yield from self._cursor.expect(">", ' string="true">', ' string="false">')
        return Parameter(name, None if ending == ">" else "true" in ending)

    def _read_typed(self, text: str, head: Parameter, tool: ToolSpec) -> str:
        if head.is_string is None:
            return coerce(text, tool.schema_of(head.name), tool.parameters)
        return mend(text) or dumps(text)
