"""A request's body: read within its limits, decoded once into its type, every fault named by its field.

Bytes are counted while they arrive, against a clock. Numbers are JSON's own: no NaN, no Infinity, nothing
beyond a float, no boolean in place of an integer. Knows nothing of what the fields mean.
"""

from __future__ import annotations

import asyncio
import re
from functools import lru_cache
from typing import TypeVar

import msgspec
import numpy as np
from starlette.requests import ClientDisconnect, Request

from server.errors import ApiError, bad_request
from server.middleware.requests import add_response_header
from server.settings import LimitsConfig
from server.state import get_state

IGNORED_FIELDS_HEADER = "X-Pagoda-Ignored-Fields"

_THREAD_ABOVE_BYTES = 256 * 1024
"""Bodies up to this size decode in about a millisecond; larger ones must not hold up the event loop."""
_MAX_NAMED_FIELDS = 16

_AT = re.compile(r" - at (?:`key` in )?`(?P<path>\$[^`]*)`$")
_MISSING = re.compile(r"Object missing required field `(?P<field>[^`]+)`")
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_FIELD_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")

BodyT = TypeVar("BodyT")


async def read_body(request: Request, limits: LimitsConfig) -> bytes:
    """Return the whole body.

    Raises:
        ApiError: it is too long, or too slow to arrive.
        ClientDisconnect: the client is gone.
    """
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > limits.max_body_bytes:
        raise _too_large(limits)
    chunks: list[bytes] = []
    num_bytes = 0
    try:
        async with asyncio.timeout(limits.body_timeout_s):
            while True:
                message = await request.receive()
                if message["type"] == "http.disconnect":
                    raise ClientDisconnect
                chunk: bytes = message.get("body", b"")
                num_bytes += len(chunk)
                if num_bytes > limits.max_body_bytes:
                    raise _too_large(limits)
                chunks.append(chunk)
                if not message.get("more_body", False):
                    return b"".join(chunks)
    except TimeoutError:
        raise ApiError(
            408, "The request's body did not arrive in time.", headers={"Connection": "close"}
        ) from None


async def receive(request: Request, body_type: type[BodyT]) -> BodyT:
    """Return the request's body as its type; fields it does not know are treated as the settings say.

    Raises:
        ApiError: with the field at fault, or because the body is too long or too slow.
        ClientDisconnect: the client is gone.
    """
    state = get_state(request)
    body = await read_body(request, state.limits)
    value = await decode_body(body, body_type, state.limits)
    policy = state.settings.unknown_fields
    if policy != "ignore" and (unknown := get_unknown_fields(body, body_type)):
        if policy == "refuse":
            raise bad_request(
                f"This server does not know these fields: {name_fields(unknown)}.", unknown[0][:64]
            )
        add_response_header(request, IGNORED_FIELDS_HEADER, name_fields(unknown))
    return value


async def decode_body(body: bytes, body_type: type[BodyT], limits: LimitsConfig) -> BodyT:
    """Return the body as its type.

    Raises:
        ApiError: 400 with the field at fault.
    """
    if len(body) <= _THREAD_ABOVE_BYTES:
        return _decode(body, body_type, limits.max_json_depth)
    return await asyncio.to_thread(_decode, body, body_type, limits.max_json_depth)


def get_unknown_fields(body: bytes, body_type: type) -> list[str]:
    """Return the names of a valid body's fields that its type does not have, in order."""
    known = _field_names(body_type)
    return [name for name in msgspec.json.decode(body, type=dict[str, msgspec.Raw]) if name not in known]


def name_fields(names: list[str]) -> str:
    """Return field names as one line that is safe in a header."""
    shown = [name if _FIELD_NAME.fullmatch(name) else "?" for name in names[:_MAX_NAMED_FIELDS]]
    return ", ".join([*shown, "..."] if len(names) > _MAX_NAMED_FIELDS else shown)


@lru_cache
def _field_names(body_type: type) -> frozenset[str]:
    return frozenset(field.encode_name for field in msgspec.structs.fields(body_type))


def _decode(body: bytes, body_type: type[BodyT], max_depth: int) -> BodyT:
    try:
        value = msgspec.json.decode(body, type=body_type)
    except msgspec.ValidationError as error:
        raise _describe_invalid(str(error)) from None
    except msgspec.DecodeError as error:
        raise bad_request(f"The body is not valid JSON: {_reason(error)}.") from None
    except ValueError:  # Python's own limit on the digits of an integer
        raise bad_request("The body holds an integer with too many digits.") from None
    except RecursionError:
        raise _too_deep(max_depth) from None
    # Decoded first: only in valid JSON do quotes pair up, which the measure relies on.
    if body.count(b"[") + body.count(b"{") > max_depth and _depth(body) > max_depth:
        raise _too_deep(max_depth)
    return value


def _depth(body: bytes) -> int:
    """Nesting of a valid JSON text."""
    codes = np.frombuffer(_STRING.sub(b"", body), dtype=np.uint8)
    opens = (codes == ord("[")) | (codes == ord("{"))
    closes = (codes == ord("]")) | (codes == ord("}"))
    return int(np.cumsum(opens.astype(np.int32) - closes).max(initial=0))


def _describe_invalid(message: str) -> ApiError:
    missing = _MISSING.search(message)
    at = _AT.search(message)
    path = _dotted(at["path"]) if at else ""
    if missing:
        path = f"{path}.{missing['field']}" if path else missing["field"]
        return bad_request(f"{path} is missing.", path)
    problem = message[: at.start()] if at else message
    problem = problem[:1].lower() + problem[1:]
    return bad_request(f"{path or 'The body'}: {problem}.", path or None)


def _reason(error: msgspec.DecodeError) -> str:
    text = str(error).removeprefix("JSON is malformed: ")
    return text[:1].lower() + text[1:]


def _dotted(path: str) -> str:
    """`$.messages[0].role` as `messages.0.role`; a key that is not named (`[...]`) is left out."""
    return re.sub(r"\[(\d+)\]", r".\1", path.replace("[...]", "")).removeprefix("$").lstrip(".")


def _too_large(limits: LimitsConfig) -> ApiError:
    # The rest is not read, so the connection cannot serve another request.
    return ApiError(
        413,
        f"The request's body is longer than {limits.max_body_bytes} bytes (limits.max_body_bytes).",
        headers={"Connection": "close"},
    )


def _too_deep(max_depth: int) -> ApiError:
    return bad_request(f"The body is nested deeper than {max_depth} levels (limits.max_json_depth).")
