"""What goes wrong, as HTTP: a status, a type, and always the envelope that OpenAI's clients read.

The one place that turns the engine's errors into answers. Texts are our own: the text of an exception that
is not ours never leaves the process, since it may hold paths, addresses or parts of other requests.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from http import HTTPStatus

import msgspec
from engine.types.errors import (
    EngineDeadError,
    EngineDrainingError,
    InvalidRequestError,
    QueueFullError,
    RequestFailedError,
)
from starlette.exceptions import HTTPException
from starlette.responses import Response

from server.protocol.error import ErrorBody, ErrorDetail

logger = logging.getLogger(__name__)

ERROR_TYPES: Mapping[int, str] = {
    400: "BadRequestError",
    401: "Unauthorized",
    403: "ForbiddenError",
    404: "NotFoundError",
    405: "MethodNotAllowedError",
    408: "RequestTimeoutError",
    413: "RequestTooLargeError",
    429: "TooManyRequestsError",
    431: "RequestTooLargeError",
    500: "InternalServerError",
    501: "NotImplementedError",
    503: "ServiceUnavailableError",
}

DEAD = "The engine has died and answers nothing more; this server is about to exit. Its log has the cause."
STOPPING = "This server is stopping and takes no new requests."
CUT_OFF = "This server is stopping; the answer was cut off before its end."
INTERNAL = "Something went wrong inside the server; its log has the cause under this request's id."
RETRY_AFTER_S = 5


class ApiError(Exception):
    """An answer that is no success.

    Attributes:
        status: HTTP status; decides `type` and `code` of the envelope.
        param: dotted name of the field at fault, or None.
        headers: further headers of the answer.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.headers = dict(headers or {})


def bad_request(message: str, param: str | None = None) -> ApiError:
    """Return a 400 that names its field."""
    return ApiError(400, message, param=param)


def unavailable(message: str) -> ApiError:
    """Return a 503 that says when to come back."""
    return ApiError(503, message, headers={"Retry-After": str(RETRY_AFTER_S)})


def as_api_error(error: Exception) -> ApiError:
    """Return what a client is told of an error; an unknown one is logged and becomes a 500 without its
    text."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, InvalidRequestError):
        return bad_request(str(error), error.param)
    if isinstance(error, QueueFullError):
        return ApiError(429, _sentence(str(error)), headers={"Retry-After": str(error.retry_after_s)})
    if isinstance(error, EngineDrainingError):
        return unavailable(STOPPING)
    if isinstance(error, EngineDeadError):
        return unavailable(DEAD)
    if isinstance(error, RequestFailedError):
        return ApiError(500, _sentence(str(error)))
    if isinstance(error, HTTPException):
        return ApiError(error.status_code, _describe(error.status_code), headers=error.headers)
    logger.error("request failed", exc_info=error)
    return ApiError(500, INTERNAL)


def encode_error(error: ApiError) -> bytes:
    """Return the envelope as JSON."""
    return msgspec.json.encode(
        ErrorBody(
            error=ErrorDetail(
                message=error.message,
                type=ERROR_TYPES.get(
                    error.status, "BadRequestError" if error.status < 500 else "InternalServerError"
                ),
                param=error.param,
                code=error.status,
            )
        )
    )


def build_error_response(error: ApiError) -> Response:
    """Return the envelope as an answer."""
    return Response(encode_error(error), error.status, error.headers, "application/json")


def _describe(status: int) -> str:
    if status == 404:
        return "There is no such route."
    if status == 405:
        return "This route does not take that method; the Allow header names those it takes."
    return f"{HTTPStatus(status).phrase}."


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]
