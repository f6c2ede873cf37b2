"""What routes have in common when they answer: JSON from a Struct, token styles, a tokenizer where one is
needed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec
from engine.types.errors import InvalidRequestError
from starlette.responses import Response

from server.chunks import encode
from server.logprobs import TokenStyle
from server.protocol.generation import GenerationRequest
from server.state import ServerState

if TYPE_CHECKING:
    from engine.frontend.tokenizer import Tokenizer


def json_response(
    body: msgspec.Struct, *, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Return a Struct as an answer."""
    return Response(encode(body), status, headers, "application/json")


def get_tokenizer(state: ServerState, param: str) -> Tokenizer:
    """Return the model's tokenizer.

    Raises:
        InvalidRequestError: it has none; `param` is the field that needs it.
    """
    tokenizer = state.get_engine().tokenizer
    if tokenizer is None:
        raise InvalidRequestError(
            "This model has no tokenizer; it takes and gives token ids only.", param=param
        )
    return tokenizer


def build_style(state: ServerState, request: GenerationRequest) -> TokenStyle:
    """Return how tokens are written in the answer to a request."""
    tokenizer = state.get_engine().tokenizer
    skips_special = request.skip_special_tokens is None or request.skip_special_tokens
    return TokenStyle(
        special_token_ids=tokenizer.special_token_ids if tokenizer and skips_special else frozenset(),
        keeps_stop_token=bool(request.include_stop_str_in_output),
        as_ids=bool(request.return_tokens_as_token_ids),
    )
