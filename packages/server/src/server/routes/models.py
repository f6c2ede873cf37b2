"""`/v1/models`: what is served, under which names."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from server.answering import json_response
from server.protocol.models import ModelCard, ModelList
from server.route import Route
from server.state import ServerState, get_state


async def list_models(request: Request) -> Response:
    """Answer with every name."""
    state = get_state(request)
    state.get_engine()
    return json_response(ModelList(data=[_build_card(state, name) for name in state.model_names]))


async def get_model(request: Request) -> Response:
    """Answer with one name."""
    state = get_state(request)
    state.get_engine()
    name = request.path_params["model_id"]
    state.check_model(name)
    return json_response(_build_card(state, name))


def _build_card(state: ServerState, name: str) -> ModelCard:
    return ModelCard(
        id=name, created=state.created, root=state.model_name, max_model_len=state.info.max_model_len
    )


ROUTES = [
    Route(method="GET", path="/v1/models", endpoint=list_models, summary="Served models", response=ModelList),
    Route(
        method="GET",
        path="/v1/models/{model_id:path}",
        endpoint=get_model,
        summary="One served model",
        response=ModelCard,
    ),
]
