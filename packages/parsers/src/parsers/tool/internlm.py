"""InternLM 2 calls: `<|action_start|><|plugin|>{"name": ..., "parameters": {...}}<|action_end|>`."""

from __future__ import annotations

from parsers.json_calls import JsonCallParser


class InternlmToolParser(JsonCallParser):
    """Reads one JSON call for each action of the plugin kind."""

    aliases = ("internlm2",)
    openers = ("<|action_start|><|plugin|>", "<|action_start|> <|plugin|>")
    closers = ("<|action_end|>",)
    markers = ("<|action_start|>", "<|plugin|>", "<|action_end|>")
