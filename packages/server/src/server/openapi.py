"""The API's description, from the routes and the types of their bodies."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from typing import Any

import msgspec

from server.auth import OPEN_PATHS
from server.protocol.error import ErrorBody
from server.route import Route

JsonTree = dict[str, Any]
"""A part of an OpenAPI document."""

_REFERENCES = "#/components/schemas/{name}"


def build_openapi(routes: Iterable[Route]) -> JsonTree:
    """Return the OpenAPI 3.1 document of these routes."""
    routes = list(routes)
    bodies = [body for route in routes for body in (route.request, route.response) if body is not None]
    types: list[type] = list(dict.fromkeys([*bodies, ErrorBody]))
    _, schemas = msgspec.json.schema_components(types, ref_template=_REFERENCES)
    references = {body: {"$ref": _REFERENCES.format(name=body.__name__)} for body in types}
    paths: JsonTree = {}
    for route in routes:
        path = re.sub(r"\{(\w+):path\}", r"{\1}", route.path)
        paths.setdefault(path, {})[route.method.lower()] = _describe(route, path, references)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Pagoda", "version": version("pagoda-server")},
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _describe(route: Route, path: str, references: dict[type, JsonTree]) -> JsonTree:
    error = {"content": {"application/json": {"schema": references[ErrorBody]}}}
    content: JsonTree = {
        route.media_type: {} if route.response is None else {"schema": references[route.response]}
    }
    if route.can_stream:
        content["text/event-stream"] = {"schema": {"type": "string"}}
    described: JsonTree = {
        "operationId": route.endpoint.__name__ + ("" if path.count("/") > 1 else path.replace("/", "_")),
        "summary": route.summary,
        "responses": {
            "200": {"description": "Success", "content": content},
            "4XX": {"description": "The request is at fault", **error},
            "5XX": {"description": "The server cannot answer now", **error},
        },
    }
    names: Sequence[str] = re.findall(r"\{(\w+)\}", path)
    if names:
        described["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names
        ]
    if route.request is not None:
        described["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": references[route.request]}},
        }
    if path not in OPEN_PATHS:
        described["security"] = [{"key": []}]
    return described
