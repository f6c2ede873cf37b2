"""The application: every route found, every layer around it, every error in the envelope.

Routes are the files under `routes/`; there is no list of them. FastAPI routes and answers; bodies are
decoded by the routes themselves.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp

from server import routes
from server.errors import as_api_error, build_error_response
from server.middleware.gate import HostGate, KeyGate, get_allowed_hosts
from server.middleware.requests import REQUEST_ID_HEADER, RequestMiddleware
from server.openapi import build_openapi
from server.route import Endpoint, Route
from server.state import ServerState, get_state

_REFUSALS = {413: "too_large", 429: "queue_full"}
"""Statuses that count as a request turned away, by the metric's reason."""


def build_app(state: ServerState) -> ASGIApp:
    """Return the application of one server."""
    app = FastAPI(title="Pagoda", docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    app.state.server = state
    found = find_routes()
    for route in found:
        app.add_api_route(
            route.path,
            _guard(route.endpoint),
            methods=[route.method],
            include_in_schema=False,
            response_model=None,
        )
    app.add_exception_handler(HTTPException, _answer_http_exception)
    app.openapi = lambda: build_openapi(found)  # type: ignore[method-assign]
    # Inside out: a request passes the last one first.
    guarded: ASGIApp = KeyGate(app, state.keys, state.metrics)
    guarded = HostGate(guarded, get_allowed_hosts(state.settings.host, state.settings.allowed_hosts))
    if state.settings.cors_origins:
        # Outside the key: a browser's preflight carries none.
        guarded = CORSMiddleware(
            guarded,
            allow_origins=state.settings.cors_origins,
            allow_methods=["GET", "POST"],
            allow_headers=["Authorization", "Content-Type", REQUEST_ID_HEADER],
            expose_headers=[REQUEST_ID_HEADER],
            allow_credentials=False,
        )
    return RequestMiddleware(guarded, state.metrics)


def find_routes() -> list[Route]:
    """Return the routes of every file under `routes/`, in the order of the files' names."""
    modules = sorted(module.name for module in pkgutil.iter_modules(routes.__path__))
    found: list[Route] = []
    for name in modules:
        offered: Iterable[Route] = importlib.import_module(f"{routes.__name__}.{name}").ROUTES
        found += offered
    return found


def _guard(endpoint: Endpoint) -> Endpoint:
    """Turn what an endpoint raises into an answer."""

    async def answer(request: Request) -> Response:
        try:
            return await endpoint(request)
        except ClientDisconnect:
            return Response(status_code=499)  # nobody is there to read it
        except Exception as error:
            refusal = as_api_error(error)
            if reason := _REFUSALS.get(refusal.status):
                get_state(request).metrics.on_refused(reason)
            return build_error_response(refusal)

    return answer


async def _answer_http_exception(request: Request, error: Exception) -> Response:
    return build_error_response(as_api_error(error))
