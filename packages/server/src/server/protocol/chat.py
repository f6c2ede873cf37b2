"""`/v1/chat/completions`: request and answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from engine.types.errors import InvalidRequestError
from msgspec import Raw, field

from server.protocol.generation import GenerationRequest
from server.protocol.usage import Usage

_REFUSED = {
    "tools": "tool calls are not offered yet",
    "functions": "tool calls are not offered yet",
    "audio": "this server answers with text only",
    "prediction": "predicted outputs are not offered",
    "web_search_options": "web search is not offered",
    "mm_processor_kwargs": "this server reads text only",
    "media_io_kwargs": "this server reads text only",
}

_NO_TOOLS_NEEDED = (None, "none", "auto")

JsonObject = dict[str, Any]
"""A JSON object whose keys are the caller's: messages, documents and template arguments go to the chat
template."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """What decides the prompt of a chat request."""

    messages: list[JsonObject]
    add_generation_prompt: bool
    continue_final_message: bool
    documents: list[JsonObject] | None
    template_kwargs: JsonObject


def check_prompt_fields(messages: list[JsonObject] | None, chat_template: str | None) -> None:
    """Refuse what cannot be rendered.

    Raises:
        InvalidRequestError: naming the field.
    """
    if not messages:
        raise InvalidRequestError("messages is empty; give at least one message.", param="messages")
    if chat_template is not None:
        raise InvalidRequestError(
            "chat_template: templates from a request are off; the model's own is used.", param="chat_template"
        )


class ChatCompletionRequest(GenerationRequest, frozen=True, kw_only=True):
    """A turn of a conversation."""

    messages: list[JsonObject]
    add_generation_prompt: bool = True
    """End the prompt with the opening of the assistant's turn."""
    continue_final_message: bool = False
    """Go on with the last message instead of a new one; needs `add_generation_prompt` false."""
    documents: list[JsonObject] | None = None
    """Documents for templates that read them."""
    chat_template: str | None = None
    """Refused: templates from a request are off."""
    chat_template_kwargs: JsonObject | None = None
    """Further variables of the template."""

    max_tokens: int | None = None
    """Null is whatever fits the context."""
    max_completion_tokens: int | None = None
    """The newer name of `max_tokens`; it wins."""
    logprobs: bool | None = None
    top_logprobs: int | None = None
    """Candidates per token; needs `logprobs`."""
    echo: bool | None = None
    """Put the last message, where it is the assistant's, before the answer."""
    reasoning_effort: str | None = None
    """Handed to the chat template."""
    include_reasoning: bool | None = None
    parallel_tool_calls: bool | None = None
    modalities: list[str] | None = None
    verbosity: str | None = None

    tools: Raw = field(default_factory=Raw)
    tool_choice: str | JsonObject | None = None
    functions: Raw = field(default_factory=Raw)
    function_call: str | JsonObject | None = None
    audio: Raw = field(default_factory=Raw)
    prediction: Raw = field(default_factory=Raw)
    web_search_options: Raw = field(default_factory=Raw)
    mm_processor_kwargs: Raw = field(default_factory=Raw)
    media_io_kwargs: Raw = field(default_factory=Raw)

    @property
    def token_limit(self) -> tuple[str, int | None]:
        """Name and value of the field that limits the answer."""
        if self.max_completion_tokens is not None:
            return "max_completion_tokens", self.max_completion_tokens
        return "max_tokens", self.max_tokens

    @property
    def conversation(self) -> Conversation:
        """What decides the prompt."""
        variables = dict(self.chat_template_kwargs or {})
        if self.reasoning_effort is not None:
            variables.setdefault("reasoning_effort", self.reasoning_effort)
        return Conversation(
            messages=self.messages,
            add_generation_prompt=self.add_generation_prompt,
            continue_final_message=self.continue_final_message,
            documents=self.documents,
            template_kwargs=variables,
        )

    def check(self) -> None:
        """Refuse what cannot be honoured, and fields that contradict each other.

        Raises:
            InvalidRequestError: naming the field.
        """
        check_prompt_fields(self.messages, self.chat_template)
        self.check_generation()
        if self.top_logprobs is not None and not self.logprobs:
            raise InvalidRequestError("top_logprobs needs logprobs=true.", param="top_logprobs")
        if self.modalities not in (None, ["text"]):
            raise InvalidRequestError('modalities: only ["text"] is offered.', param="modalities")
        self._check_tools()
        self.refuse_given(_REFUSED)

    def _check_tools(self) -> None:
        if bytes(self.tools) not in (b"", b"null"):
            self._check_tools_against_choice()
        elif self.tool_choice not in _NO_TOOLS_NEEDED:
            raise InvalidRequestError(f"tool_choice={self.tool_choice!r} needs tools.", param="tool_choice")
        if self.function_call not in _NO_TOOLS_NEEDED:
            raise InvalidRequestError("function_call: tool calls are not offered yet.", param="function_call")

    def _check_tools_against_choice(self) -> None:
        tools = msgspec.json.decode(self.tools)
        if not isinstance(tools, list) or not tools:
            raise InvalidRequestError(
                "tools must be a list of at least one tool; leave it out.", param="tools"
            )
        if not isinstance(self.tool_choice, dict):
            return
        function = self.tool_choice.get("function")
        wanted = function.get("name") if isinstance(function, dict) else None
        names = [
            tool["function"].get("name")
            for tool in tools
            if isinstance(tool, dict) and isinstance(tool.get("function"), dict)
        ]
        if wanted not in names:
            raise InvalidRequestError(
                "tool_choice names a tool that is not among tools.", param="tool_choice"
            )


class TokenCandidate(msgspec.Struct, frozen=True, kw_only=True):
    """A token that could have stood at a position."""

    token: str
    logprob: float
    bytes: list[int] | None
    """Its own bytes; a character may need those of several tokens."""


class TokenLogprob(msgspec.Struct, frozen=True, kw_only=True):
    """The token at a position, and the candidates for it in falling order."""

    token: str
    logprob: float
    bytes: list[int] | None
    """What the token adds to the text; empty for special tokens that are left out of it."""
    top_logprobs: list[TokenCandidate]


class ChatLogprobs(msgspec.Struct, frozen=True):
    """An entry per generated token."""

    content: list[TokenLogprob]


class ChatAnswerMessage(msgspec.Struct, frozen=True, kw_only=True):
    """The assistant's message."""

    role: str
    content: str | None
    refusal: str | None = None


class ChatChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One answer."""

    index: int
    message: ChatAnswerMessage
    logprobs: ChatLogprobs | None
    finish_reason: str | None
    stop_reason: int | str | None


class ChatChoiceWithIds(ChatChoice, frozen=True, kw_only=True):
    """One answer with its token ids, where they were asked for."""

    token_ids: list[int]


class ChatCompletionResponse(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A finished request."""

    id: str
    object: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    prompt_logprobs: list[Mapping[int, Mapping[str, Any]] | None] | None = None
    """Per prompt token: id -> logprob, rank, decoded_token."""
    prompt_token_ids: list[int] | None = None
