"""The terminal client against a running server."""

from __future__ import annotations

import io
from collections.abc import Callable

import httpx
import pytest
from rich.console import Console
from scripted_core import ASSISTANT, EOS, SYSTEM, USER, expected_text
from server.terminal import ChatError, ChatSettings, Conversation
from server_harness import RunningServer


def typed(*lines: str) -> Callable[[], str]:
    rest = list(lines)

    def read_line() -> str:
        if not rest:
            raise EOFError
        return rest.pop(0)

    return read_line


def talk(server: RunningServer, *lines: str, **settings: str) -> tuple[Conversation, str]:
    out = io.StringIO()
    console = Console(file=out, width=200)
    with httpx.Client(base_url=server.url) as client:
        conversation = Conversation(client, ChatSettings(url=server.url, **settings), console)
        conversation.run(typed(*lines))
    return conversation, out.getvalue()


def test_turns_are_answered_and_remembered(shared_server: RunningServer) -> None:
    conversation, shown = talk(shared_server, "hi", "", "more", max_tokens="6")
    first = expected_text([USER, *b"hi", EOS, ASSISTANT], 6)
    assert [message["role"] for message in conversation.messages] == ["user", "assistant"] * 2
    assert conversation.messages[1]["content"] == first
    assert first in shown


def test_reset_forgets_all_but_the_system_message(shared_server: RunningServer) -> None:
    conversation, _ = talk(
        shared_server, "hi", "/reset", "again", "/exit", "never", system="Be", max_tokens="4"
    )
    prompt = [SYSTEM, *b"Be", EOS, USER, *b"again", EOS, ASSISTANT]
    assert [message["role"] for message in conversation.messages] == ["system", "user", "assistant"]
    assert conversation.messages[-1]["content"] == expected_text(prompt, 4)


def test_a_turn_that_the_server_refuses_did_not_happen(shared_server: RunningServer) -> None:
    conversation, shown = talk(shared_server, "hi", temperature="9")
    assert conversation.messages == []
    assert "temperature" in shown


def test_no_server_is_said_with_what_to_do() -> None:
    with httpx.Client(base_url="http://127.0.0.1:9") as client:
        conversation = Conversation(
            client, ChatSettings(url="http://127.0.0.1:9"), Console(file=io.StringIO())
        )
        with pytest.raises(ChatError, match="python -m server"):
            conversation.run(typed("hi"))
