"""InternLM 2 calls: `<|action_start|><|plugin|>{"name": ..., "parameters": {...}}<|action_end|>`."""

from __future__ import annotations

from parsers.cursor import Step
from parsers.json_calls import JsonCallParser


class InternlmToolParser(JsonCallParser):
    """Reads one JSON call for each action of the plugin kind."""

    aliases = ("internlm2",)
    openers = ("<|action_start|>",)
    closers = ("<|action_end|>",)
    markers = ("<|action_start|>", "<|plugin|>", "<|action_end|>")

    def _read_block(self, opener: str) -> Step[None]:
        yield from self._cursor.space()
        yield from self._cursor.expect("<|plugin|>")
        yield from super()._read_block(opener)
