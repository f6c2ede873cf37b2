"""The listening socket: bound before anything else happens, so that a taken port is known at once.

The bound socket itself is handed on; the port is never asked for twice.
"""

from __future__ import annotations

import errno
import os
import socket

from engine.types.errors import ConfigError

BACKLOG = 2048


def bind(host: str, port: int) -> socket.socket:
    """Return a socket that listens on this address.

    Raises:
        ConfigError: the address is taken, not ours, or not allowed.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as error:
        raise ConfigError(
            f"server.host={host!r} is no address of this machine ({error.strerror}).", key="server.host"
        ) from None
    listener = socket.socket(family, kind, protocol)
    try:
        # A port in TIME_WAIT after a restart is free; a port that someone listens on is not.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise _explain(error, host, port) from None
    listener.setblocking(False)
    return listener


def describe(listener: socket.socket) -> str:
    """Return the URL under which a socket is reached."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _explain(error: OSError, host: str, port: int) -> ConfigError:
    if error.errno == errno.EADDRINUSE:
        return ConfigError(
            f"server.port={port}: {host}:{port} is taken by another process; stop it or choose another port "
            "(0 lets the system choose).",
            key="server.port",
        )
    if error.errno == errno.EACCES:
        return ConfigError(
            f"server.port={port} is not allowed for this user; choose one above 1023.", key="server.port"
        )
    return ConfigError(
        f"server.host={host!r}: cannot listen there ({os.strerror(error.errno or 0)}).", key="server.host"
    )
