"""Kimi K2 calls: an id that holds the name, and JSON, inside a section of special tokens."""

from __future__ import annotations

from parsers.cursor import Step
from parsers.sections import SectionParser

_ARGUMENTS = "<|tool_call_argument_begin|>"


class KimiK2ToolParser(SectionParser):
    """Reads `functions.NAME:INDEX<|tool_call_argument_begin|>{...}`; the id stays the model's own."""

    section_open = "<|tool_calls_section_begin|>"
    section_close = "<|tool_calls_section_end|>"
    call_open = "<|tool_call_begin|>"
    call_close = "<|tool_call_end|>"
    openers = (section_open, call_open)
    markers = (section_open, call_open, _ARGUMENTS, call_close, section_close)

    def _read_call(self) -> Step[None]:
        call_id = yield from self._cursor.word(_ARGUMENTS, " ")
        yield from self._cursor.space()
        yield from self._cursor.expect(_ARGUMENTS)
        yield from self._cursor.space()
        name, _, index = call_id.removeprefix("functions.").rpartition(":")
        if not index.isdigit():
            name = call_id.removeprefix("functions.")
        yield from self._read_json_arguments(name, self.call_close, call_id=self._unique(call_id))

    def _unique(self, call_id: str) -> str:
        """Return `call_id`, with another number in it where the model used it before."""
        stem = call_id.rpartition(":")[0] or call_id
        number = self._num_calls
        while call_id in self._used_ids:
            call_id = f"{stem}:{number}"
            number += 1
        return call_id
