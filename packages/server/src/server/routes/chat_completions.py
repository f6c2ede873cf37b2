"""`/v1/chat/completions`: a conversation in, the assistant's next message out."""

from __future__ import annotations

from engine.types.errors import InvalidRequestError
from engine.types.sampling_params import RequestOutputKind, SamplingParams
from starlette.requests import Request
from starlette.responses import Response

from server.answering import build_style, json_response
from server.body import receive
from server.chat.answer import ChatAnswer
from server.chat.prompt import render_prompt
from server.chunks import build_head
from server.generation import Submission, collect_outputs, stream_outputs
from server.protocol.chat import ChatCompletionRequest, ChatCompletionResponse
from server.route import Route
from server.sse import open_stream, run_unless_gone
from server.state import ServerState, get_state


async def complete_chat(request: Request) -> Response:
    """Answer with the assistant's message, whole or as a stream."""
    state = get_state(request)
    state.check_room()
    body = await receive(request, ChatCompletionRequest)
    state.check_model(body.model)
    body.check()
    try:
        return await _answer(request, state, body)
    except InvalidRequestError as error:
        raise _rename(error, body) from None


async def _answer(request: Request, state: ServerState, body: ChatCompletionRequest) -> Response:
    params = _build_params(state, body)
    head = build_head("chatcmpl", state.model_name)
    engine = state.get_engine()
    state.check_size(params.n)
    with state.hold_room(params.n):
        prompt = await run_unless_gone(request, render_prompt(state, body.conversation))
    submission = Submission(
        prompts=[prompt],
        params=params,
        request_id=head.id,
        priority=body.priority or 0,
        cache_salt=body.cache_salt,
        add_special_tokens=body.add_special_tokens is True,
    )
    answer = ChatAnswer(body, head, build_style(state, body))
    if body.stream:
        events = answer.stream(stream_outputs(engine, submission), state.settings.force_usage)
        return await open_stream(request, events)
    (output,) = await run_unless_gone(request, collect_outputs(engine, submission))
    return json_response(answer.build(output))


def _build_params(state: ServerState, body: ChatCompletionRequest) -> SamplingParams:
    return body.build_params(
        state.sampling_defaults,
        max_tokens=body.token_limit[1],
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        prompt_logprobs=body.prompt_logprobs,
        output_kind=RequestOutputKind.DELTA if body.stream else RequestOutputKind.FINAL_ONLY,
    )


def _rename(error: InvalidRequestError, body: ChatCompletionRequest) -> InvalidRequestError:
    """Name the field as this route's callers wrote it; the engine has names of its own for some."""
    names = {"prompt": "messages", "logprobs": "top_logprobs", "max_tokens": body.token_limit[0]}
    return InvalidRequestError(str(error), param=names.get(error.param or "", error.param), code=error.code)


ROUTES = [
    Route(
        method="POST",
        path="/v1/chat/completions",
        endpoint=complete_chat,
        summary="Chat completions",
        request=ChatCompletionRequest,
        response=ChatCompletionResponse,
        can_stream=True,
    )
]
