"""DeepSeek V3 and R1 calls: a type, a name, and JSON in a fenced block, in a section of special tokens."""

from __future__ import annotations

from parsers.cursor import Step
from parsers.sections import SectionParser

_SEP = "<\uff5ctool\u2581sep\uff5c>"


class DeepseekV3ToolParser(SectionParser):
    """Reads `function<sep>NAME`, a line break, and the arguments between ```json and ```."""

    aliases = ("deepseekv3",)
    section_open = "<\uff5ctool\u2581calls\u2581begin\uff5c>"
    section_close = "<\uff5ctool\u2581calls\u2581end\uff5c>"
    call_open = "<\uff5ctool\u2581call\u2581begin\uff5c>"
    call_close = "<\uff5ctool\u2581call\u2581end\uff5c>"
    openers = (section_open, call_open)
    markers = (section_open, call_open, _SEP, call_close, section_close)

    def _read_call(self) -> Step[None]:
        cursor = self._cursor
        yield from cursor.expect("function" + _SEP)
        name = yield from cursor.word("\n", "`", " ")
        yield from cursor.space()
        yield from cursor.expect("```json")
        yield from cursor.space()
        yield from self._read_json_arguments(name, "```", self.call_close)
        yield from cursor.space()
        yield from cursor.accept("```")
