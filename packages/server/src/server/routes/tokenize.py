"""`/tokenize` and `/detokenize`: text and conversations as the model sees them, and back."""

from __future__ import annotations

from engine.frontend.input_processor import check_text, check_token_ids
from engine.types.errors import InvalidRequestError
from starlette.requests import Request
from starlette.responses import Response

from server.answering import get_tokenizer, json_response
from server.body import receive
from server.chat.prompt import render_prompt
from server.protocol.tokenize import DetokenizeRequest, DetokenizeResponse, TokenizeRequest, TokenizeResponse
from server.route import Route
from server.sse import run_unless_gone
from server.state import ServerState, get_state

MAX_CHARACTERS_PER_TOKEN = 64
"""Text beyond this many characters per token of context is not worth counting; it bounds the work."""


async def tokenize(request: Request) -> Response:
    """Answer with the token ids of a text or a conversation."""
    state = get_state(request)
    state.get_engine()
    body = await receive(request, TokenizeRequest)
    body.check()
    state.check_model(body.model)
    return json_response(await run_unless_gone(request, _tokenize(state, body)))


async def detokenize(request: Request) -> Response:
    """Answer with the text of token ids."""
    state = get_state(request)
    tokenizer = get_tokenizer(state, "tokens")
    body = await receive(request, DetokenizeRequest)
    state.check_model(body.model)
    check_token_ids(body.tokens, state.info.vocab_size, "tokens")
    text = await state.run_in_thread(lambda: tokenizer.decode(body.tokens, skip_special_tokens=False))
    return json_response(DetokenizeResponse(prompt=text))


async def _tokenize(state: ServerState, body: TokenizeRequest) -> TokenizeResponse:
    conversation = body.conversation
    param = "prompt" if conversation is None else "messages"
    tokenizer = get_tokenizer(state, param)
    text = body.prompt or "" if conversation is None else await render_prompt(state, conversation)
    max_characters = state.info.max_model_len * MAX_CHARACTERS_PER_TOKEN
    if len(text) > max_characters:
        raise InvalidRequestError(
            f"{param} has {len(text)} characters; at most {max_characters} are tokenized.", param=param
        )
    check_text(text, param)
    adds_special = conversation is None if body.add_special_tokens is None else body.add_special_tokens
    token_ids = await state.run_in_thread(lambda: tokenizer.encode(text, add_special_tokens=adds_special))
    return TokenizeResponse(
        count=len(token_ids),
        max_model_len=state.info.max_model_len,
        tokens=token_ids,
        token_strs=[tokenizer.token_string(i) for i in token_ids] if body.return_token_strs else None,
    )


ROUTES = [
    Route(
        method="POST",
        path="/tokenize",
        endpoint=tokenize,
        summary="Token ids of a text or a conversation",
        request=TokenizeRequest,
        response=TokenizeResponse,
    ),
    Route(
        method="POST",
        path="/detokenize",
        endpoint=detokenize,
        summary="Text of token ids",
        request=DetokenizeRequest,
        response=DetokenizeResponse,
    ),
]
