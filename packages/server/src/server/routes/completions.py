"""`/v1/completions`: prompts in, text that goes on from them out."""

from __future__ import annotations

from engine.types.errors import InvalidRequestError
from engine.types.sampling_params import RequestOutputKind, SamplingParams
from starlette.requests import Request
from starlette.responses import Response

from server.answering import build_style, get_tokenizer, json_response
from server.body import receive
from server.chunks import build_head
from server.completion.answer import CompletionAnswer
from server.generation import Submission, collect_outputs, stream_outputs
from server.protocol.completion import CompletionRequest, CompletionResponse
from server.route import Route
from server.sse import open_stream, run_unless_gone
from server.state import ServerState, get_state


async def complete(request: Request) -> Response:
    """Answer with completions, whole or as a stream."""
    state = get_state(request)
    state.check_room()
    body = await receive(request, CompletionRequest)
    state.check_model(body.model)
    body.check()
    prompts = body.get_prompts()
    params = _build_params(state, body)
    head = build_head("cmpl", state.model_name)
    engine = state.get_engine()
    submission = Submission(
        prompts=prompts,
        params=params,
        request_id=head.id,
        priority=body.priority or 0,
        cache_salt=body.cache_salt,
        add_special_tokens=body.add_special_tokens is not False,
    )
    answer = CompletionAnswer(body, head, build_style(state, body), lambda ids: _decode(state, ids))
    # Room for all of them, or none is started.
    state.check_size(len(prompts) * params.n)
    state.check_room(len(prompts) * params.n)
    if body.stream:
        events = answer.stream(stream_outputs(engine, submission), state.settings.force_usage)
        return await open_stream(request, events)
    outputs = await run_unless_gone(request, collect_outputs(engine, submission))
    return json_response(answer.build(outputs))


def _build_params(state: ServerState, body: CompletionRequest) -> SamplingParams:
    prompt_logprobs = body.prompt_logprobs
    if body.echo and body.num_logprobs is not None:
        if prompt_logprobs is not None and prompt_logprobs != body.num_logprobs:
            raise InvalidRequestError(
                "prompt_logprobs and logprobs with echo ask for different counts; give one.",
                param="prompt_logprobs",
            )
        if body.stream and body.num_sequences_per_prompt > 1:
            raise InvalidRequestError("echo with logprobs and n > 1 cannot be streamed.", param="echo")
        prompt_logprobs = body.num_logprobs
    return body.build_params(
        state.sampling_defaults,
        max_tokens=1 if body.is_echo_alone else body.max_tokens,
        logprobs=body.num_logprobs,
        prompt_logprobs=prompt_logprobs,
        output_kind=RequestOutputKind.DELTA if body.stream else RequestOutputKind.FINAL_ONLY,
    )


def _decode(state: ServerState, token_ids: list[int]) -> str:
    text: str = get_tokenizer(state, "echo").decode(token_ids, skip_special_tokens=False)
    return text


ROUTES = [
    Route(
        method="POST",
        path="/v1/completions",
        endpoint=complete,
        summary="Text completions",
        request=CompletionRequest,
        response=CompletionResponse,
        can_stream=True,
    )
]
