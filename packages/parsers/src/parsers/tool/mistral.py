"""Mistral calls of three generations, told apart as they come.

`[TOOL_CALLS] [{"name": ..., "arguments": {...}}]` before tokenizer v11, `[TOOL_CALLS]name{...}` since, and
`[TOOL_CALLS]name[CALL_ID]id[ARGS]{...}` or without the id since v13.
"""

from __future__ import annotations

import secrets
import string

from parsers.cursor import Step
from parsers.json_calls import JsonCallParser

_ID_LEN = 9
_ID_CHARS = string.ascii_letters + string.digits


class MistralToolParser(JsonCallParser):
    """Reads calls of any generation; ids are nine letters and digits, as the chat template demands."""

    openers = ("[TOOL_CALLS]",)
    markers = ("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]")

    def _read_block(self, opener: str) -> Step[None]:
        yield from self._cursor.space()
        if bracket := (yield from self._cursor.accept("[", "{")):
            yield from self._read_calls(bracket, is_bare=False)
            return
        # A broken object is passed on up to the next call.
        while (yield from self._read_named_call()):
            yield from self._cursor.space()

    def _read_named_call(self) -> Step[str]:
        cursor = self._cursor
        name = yield from cursor.word("{", "[", " ")
        call_id = ""
        if (yield from cursor.accept("[CALL_ID]")):
            call_id = yield from cursor.word("[")
        yield from cursor.accept("[ARGS]")
        yield from cursor.space()
        return (yield from self._read_json_arguments(name, *self.openers, call_id=call_id or None))

    @staticmethod
    def _random_id() -> str:
        return "".join(secrets.choice(_ID_CHARS) for _ in range(_ID_LEN))
