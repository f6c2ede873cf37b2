"""FunctionGemma calls: `<start_function_call>call:NAME{key:<escape>text<escape>}<end_function_call>`."""

from __future__ import annotations

from parsers.braces import BracedCallParser


class FunctionGemmaToolParser(BracedCallParser):
    """Reads braced calls between their tokens; every value is quoted, so the schema gives its type."""

    openers = ("<start_function_call>",)
    closer = "<end_function_call>"
    quote = "<escape>"
    markers = (*openers, closer, quote)
    coerces_quoted = True
