"""Settings of the groups `server` and `limits`: where the port is, who may use it, and how much of it.

Data only; the schemas are handed to the engine's composition, which checks every value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from msgspec import Meta

Port = Annotated[int, Meta(ge=0, le=65535)]
PositiveInt = Annotated[int, Meta(ge=1)]
NonNegativeInt = Annotated[int, Meta(ge=0)]
PositiveSeconds = Annotated[float, Meta(gt=0)]
Seconds = Annotated[float, Meta(ge=0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """The HTTP server."""

    host: str = "127.0.0.1"
    """Address to listen on; `0.0.0.0` is every IPv4 address, `::` every address."""
    port: Port = 8000
    """Port to listen on; 0 lets the system choose, and the log names it."""
    served_model_name: str | list[str] | None = None
    """Name, or names, under which requests find the model; null takes the option's or the checkpoint's
    own."""
    api_key_file: str | None = None
    """File with one API key per line; keys in the environment variable PAGODA_API_KEY (comma-separated) count
    too."""
    open_metrics: bool = False
    """Answer `/metrics` without a key where keys are set."""
    unknown_fields: Literal["ignore", "warn", "refuse"] = "ignore"
    """Request fields that this server does not know: `ignore`, `warn` in a response header, or `refuse` with
    400."""
    cors_origins: list[str] = field(default_factory=list)
    """Web origins whose pages may call this server; empty is none, `*` is any (never with credentials)."""
    allowed_hosts: list[str] = field(default_factory=list)
    """Host names that requests may carry besides the loopback ones; checked on a loopback address, or where
    given."""
    force_usage: bool = False
    """End every stream with token counts, whether or not the request asks."""
    sse_keep_alive_s: Seconds = 0.0
    """Seconds of silence after which a stream gets a comment line, so that proxies keep it open; 0 is
    never."""
    drain_timeout_s: Seconds = 30.0
    """Seconds that running requests get to finish after SIGTERM or SIGINT."""
    exit_delay_s: Seconds = 3.0
    """Seconds the port still answers (503) after the engine died, before the process exits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsConfig:
    """What one client, or all together, may ask for; applied before any work."""

    max_queued_requests: NonNegativeInt = 1024
    """Sequences that may wait beyond those that can run at once; more are answered 429."""
    max_sequences_per_request: PositiveInt = 256
    """Prompts times `n` of one request."""
    max_body_bytes: PositiveInt = 8388608
    """Bytes of a request body."""
    max_json_depth: PositiveInt = 64
    """Nesting of a request body."""
    max_header_bytes: PositiveInt = 65536
    """Bytes of a request line and its headers together."""
    max_headers: PositiveInt = 256
    """Headers of a request."""
    max_connections: PositiveInt = 4096
    """Open connections; more are answered 503 and closed."""
    header_timeout_s: PositiveSeconds = 10.0
    """Seconds from the first byte of a request, or from the connection, to the end of its headers."""
    body_timeout_s: PositiveSeconds = 60.0
    """Seconds for a request body to arrive."""
    keep_alive_timeout_s: PositiveSeconds = 75.0
    """Seconds an idle connection stays open between requests."""
    send_timeout_s: PositiveSeconds = 60.0
    """Seconds a reader may leave a piece of its answer unread before it is cut off."""


SCHEMAS: Mapping[str, type] = {"server": ServerConfig, "limits": LimitsConfig}
