"""`/metrics`: Prometheus' text format."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from server.metrics import CONTENT_TYPE
from server.route import Route
from server.state import get_state


async def get_metrics(request: Request) -> Response:
    """Answer with all metrics."""
    return Response(get_state(request).metrics.render(), media_type=CONTENT_TYPE)


ROUTES = [
    Route(
        method="GET",
        path="/metrics",
        endpoint=get_metrics,
        summary="Prometheus metrics",
        media_type="text/plain",
    )
]
