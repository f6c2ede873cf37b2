"""`/openapi.json` and `/docs`: the API's description for programs and, without scripts or foreign hosts, for
people."""

from __future__ import annotations

from html import escape
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from server.route import Route

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }}
code {{ background: #8882; padding: 0 .25em; border-radius: .2em; }}
table {{ border-collapse: collapse; width: 100%; }} td {{ border-top: 1px solid #8884; padding: .2em .5em; }}
summary {{ cursor: pointer; }}
</style></head><body><h1>{title}</h1>
<p>As data: <a href="/openapi.json"><code>/openapi.json</code></a></p>
{body}
</body></html>
"""


async def get_openapi(request: Request) -> Response:
    """Answer with the description as JSON."""
    return Response(msgspec.json.encode(request.app.openapi()), media_type="application/json")


async def get_docs(request: Request) -> Response:
    """Answer with the description as a page."""
    return HTMLResponse(render_page(request.app.openapi()))


def render_page(document: dict[str, Any]) -> str:
    """Return an OpenAPI document as HTML."""
    schemas = document["components"]["schemas"]
    parts = []
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            parts.append(f"<h2><code>{method.upper()} {escape(path)}</code></h2>")
            parts.append(f"<p>{escape(operation['summary'])}</p>")
            for title, reference in _get_bodies(operation):
                parts.append(
                    f"<details><summary>{title}</summary>{_render_fields(schemas[reference])}</details>"
                )
    title = f"{document['info']['title']} {document['info']['version']}"
    return _PAGE.format(title=escape(title), body="\n".join(parts))


def _get_bodies(operation: dict[str, Any]) -> list[tuple[str, str]]:
    found = []
    contents = (
        ("Request", operation.get("requestBody", {}).get("content", {})),
        ("Answer", operation["responses"]["200"]["content"]),
    )
    for title, content in contents:
        reference = content.get("application/json", {}).get("schema", {}).get("$ref")
        if reference:
            found.append((title, reference.rpartition("/")[2]))
    return found


def _render_fields(schema: dict[str, Any]) -> str:
    required = set(schema.get("required", ()))
    rows = [
        f"<tr><td><code>{escape(name)}</code></td><td>{escape(_describe_type(field))}</td>"
        f"<td>{'required' if name in required else ''}</td></tr>"
        for name, field in schema.get("properties", {}).items()
    ]
    return f"<table>{''.join(rows)}</table>"


def _describe_type(field: dict[str, Any]) -> str:
    if "$ref" in field:
        return str(field["$ref"]).rpartition("/")[2]
    if "anyOf" in field:
        return " or ".join(_describe_type(option) for option in field["anyOf"])
    if field.get("type") == "array" and "items" in field:
        return f"list of {_describe_type(field['items'])}"
    return str(field.get("type", "anything"))


ROUTES = [
    Route(
        method="GET", path="/openapi.json", endpoint=get_openapi, summary="This API as an OpenAPI document"
    ),
    Route(
        method="GET", path="/docs", endpoint=get_docs, summary="This API as a page", media_type="text/html"
    ),
]
