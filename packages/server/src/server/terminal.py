"""A conversation in the terminal with a running server, streamed.

    python -m server.chat [url=http://127.0.0.1:8000] [model=NAME] [system=TEXT] [temperature=T]
    [max_tokens=N]

The key, where the server wants one, comes from PAGODA_API_KEY. `/reset` forgets the conversation, `/exit`
or the end of input leaves; Ctrl-C ends an answer. Knows HTTP only, nothing of the engine.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace

import httpx
import msgspec
from rich.console import Console

KEY_VARIABLE = "PAGODA_API_KEY"
_CONNECT_TIMEOUT_S = 10.0
_EVENT_PREFIX = "data: "


class ChatError(Exception):
    """The server cannot be talked to, with what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatSettings:
    """What may be given on the command line."""

    #: The server's address; what OpenAI's clients are given, with /v1 at its end, works too.
    url: str = "http://127.0.0.1:8000"
    model: str = ""
    system: str = ""
    temperature: str = ""
    max_tokens: str = ""


def main() -> None:
    """Run with the process's own command line."""
    console = Console(highlight=False)
    try:
        settings = parse_settings(sys.argv[1:])
        if settings is None:
            print((__doc__ or "").strip())
            return
        headers = {}
        if key := os.environ.get(KEY_VARIABLE, "").split(",")[0].strip():
            headers["Authorization"] = f"Bearer {key}"
        timeout = httpx.Timeout(None, connect=_CONNECT_TIMEOUT_S)
        with httpx.Client(base_url=settings.url, headers=headers, timeout=timeout) as client:
            Conversation(client, settings, console).run(lambda: console.input("[bold cyan]you:[/] "))
    except ChatError as error:
        print(f"python -m server.chat: {error}", file=sys.stderr)
        sys.exit(2)


def parse_settings(argv: Sequence[str]) -> ChatSettings | None:
    """Return the settings of a command line; None where help is asked for.

    Raises:
        ChatError: an unknown key.
    """
    settings = ChatSettings()
    names = [field.name for field in fields(ChatSettings)]
    for word in argv:
        if word in ("-h", "--help"):
            return None
        name, sign, value = word.partition("=")
        if not sign or name not in names:
            raise ChatError(f"{word!r} is not known; give {', '.join(f'{name}=...' for name in names)}.")
        settings = replace(settings, **{name: value})
    return replace(settings, url=settings.url.rstrip("/").removesuffix("/v1"))


class Conversation:
    """Messages so far, and the way to add to them."""

    def __init__(self, client: httpx.Client, settings: ChatSettings, console: Console) -> None:
        self._client = client
        self._settings = settings
        self._console = console
        self._first = [{"role": "system", "content": settings.system}] if settings.system else []
        self.messages: list[dict[str, str]] = list(self._first)

    def run(self, read_line: Callable[[], str]) -> None:
        """Take turns until the user leaves.

        Raises:
            ChatError: the server cannot be reached.
        """
        model = self._settings.model or self._get_model()
        self._console.print(f"[dim]{model} at {self._settings.url}; /reset forgets, /exit leaves[/]")
        while True:
            try:
                text = read_line().strip()
            except (EOFError, KeyboardInterrupt):
                self._console.print()
                return
            if text == "/exit":
                return
            if text == "/reset":
                self.messages = list(self._first)
                self._console.print("[dim]forgotten[/]")
            elif text:
                self._take_turn(model, text)

    def _take_turn(self, model: str, text: str) -> None:
        self.messages.append({"role": "user", "content": text})
        answer = ""
        try:
            for piece in self._stream(model):
                answer += piece
                self._console.print(piece, end="", markup=False, emoji=False)
        except KeyboardInterrupt:
            self._console.print("[dim] (stopped)[/]", end="")
        except (ChatError, httpx.HTTPError) as error:
            self._console.print(f"[red]{error}[/]", end="")
            if not answer:
                self.messages.pop()  # the turn did not happen
        self._console.print()
        if answer:
            self.messages.append({"role": "assistant", "content": answer})

    def _stream(self, model: str) -> Iterator[str]:
        body: dict[str, object] = {"model": model, "messages": self.messages, "stream": True}
        if self._settings.temperature:
            body["temperature"] = _number(self._settings.temperature)
        if self._settings.max_tokens:
            body["max_tokens"] = _number(self._settings.max_tokens)
        with self._client.stream("POST", "/v1/chat/completions", json=body) as response:
            if response.status_code != 200:
                response.read()
                raise ChatError(_get_message(response))
            for line in response.iter_lines():
                if not line.startswith(_EVENT_PREFIX) or line == f"{_EVENT_PREFIX}[DONE]":
                    continue
                event = msgspec.json.decode(line.removeprefix(_EVENT_PREFIX))
                if "error" in event:
                    raise ChatError(event["error"]["message"])
                for choice in event["choices"]:
                    yield choice["delta"].get("content") or ""

    def _get_model(self) -> str:
        try:
            response = self._client.get("/v1/models")
        except httpx.HTTPError:
            raise ChatError(
                f"nothing answers at {self._settings.url}; start a server (python -m server) or give url=..."
            ) from None
        if response.status_code != 200:
            raise ChatError(_get_message(response))
        return str(response.json()["data"][0]["id"])


def _get_message(response: httpx.Response) -> str:
    try:
        return str(response.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"the server answered {response.status_code}"


def _number(text: str) -> float | int:
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        raise ChatError(f"{text!r} is no number.") from None
