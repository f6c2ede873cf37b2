"""Llama 3 and 4 JSON calls: bare objects, `;` between them, perhaps behind `<|python_tag|>`."""

from __future__ import annotations

from parsers.json_calls import JsonCallParser


class Llama3JsonToolParser(JsonCallParser):
    """Reads JSON calls wherever an object stands that names an offered tool."""

    aliases = ("llama4_json", "llama3", "llama3_1", "llama4")
    openers = ("<|python_tag|>", "{")
    markers = ("<|python_tag|>",)
