"""DeepSeek V3.1 calls: a name, a separator and JSON, inside a section of special tokens."""

from __future__ import annotations

from parsers.cursor import Step
from parsers.sections import SectionParser

_SEP = "<\uff5ctool\u2581sep\uff5c>"


class DeepseekV31ToolParser(SectionParser):
    """Reads `NAME<sep>{...}`."""

    aliases = ("deepseekv31",)
    section_open = "<\uff5ctool\u2581calls\u2581begin\uff5c>"
    section_close = "<\uff5ctool\u2581calls\u2581end\uff5c>"
    call_open = "<\uff5ctool\u2581call\u2581begin\uff5c>"
    call_close = "<\uff5ctool\u2581call\u2581end\uff5c>"
    openers = (section_open, call_open)
    markers = (section_open, call_open, _SEP, call_close, section_close)

    def _read_call(self) -> Step[None]:
        name = yield from self._cursor.word(_SEP)
        yield from self._cursor.expect(_SEP)
        yield from self._cursor.space()
        yield from self._read_json_arguments(name, self.call_close)
