"""Who may come in: the host a request was meant for, then its key. Both before a route is looked up.

A page in a browser can point a name of its own at a loopback address; such requests carry that name as
their host and are refused there.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from server.auth import KeyRing
from server.errors import ApiError, build_error_response
from server.metrics import ServerMetrics

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})


class HostGate:
    """Lets through requests whose Host header names this server.

    Args:
        hosts: names and addresses without port; `*` lets every one through.
    """

    def __init__(self, app: ASGIApp, hosts: Iterable[str]) -> None:
        self._app = app
        self._hosts = frozenset(host.lower() for host in hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve or refuse one request."""
        if scope["type"] == "http" and not self._admits(Headers(scope=scope)):
            refusal = ApiError(
                403,
                "The Host header does not name this server; the operator can allow it "
                "(server.allowed_hosts).",
            )
            await build_error_response(refusal)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _admits(self, headers: Headers) -> bool:
        return "*" in self._hosts or _host_name(headers.get("host", "")) in self._hosts


class KeyGate:
    """Lets through requests to open paths, and those with a key."""

    def __init__(self, app: ASGIApp, keys: KeyRing, metrics: ServerMetrics) -> None:
        self._app = app
        self._keys = keys
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve or refuse one request."""
        if scope["type"] == "http" and not self._keys.admits(scope["path"], Headers(scope=scope)):
            self._metrics.on_refused("unauthorized")
            refusal = ApiError(
                401,
                "A valid API key is needed: Authorization: Bearer <key>.",
                headers={"WWW-Authenticate": "Bearer", "Connection": "close"},
            )
            await build_error_response(refusal)(scope, receive, send)
            return
        await self._app(scope, receive, send)


def get_allowed_hosts(bound_host: str, extra: list[str]) -> frozenset[str]:
    """Return the hosts that requests may name; `*` where the address is public and nothing else is said."""
    if is_loopback(bound_host):
        return LOOPBACK_NAMES | {bound_host.lower(), *extra}
    return frozenset({*LOOPBACK_NAMES, bound_host.lower(), *extra}) if extra else frozenset({"*"})


def is_loopback(host: str) -> bool:
    """Return whether an address or name reaches this machine only."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _host_name(header: str) -> str:
    """`[::1]:8000` as `::1`, `localhost:8000` as `localhost`."""
    if header.startswith("["):
        return header[1:].partition("]")[0].lower()
    return header.partition(":")[0].rstrip(".").lower()
