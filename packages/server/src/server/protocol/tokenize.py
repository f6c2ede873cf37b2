"""`/tokenize` and `/detokenize`."""

from __future__ import annotations

import msgspec
from engine.types.errors import InvalidRequestError
from msgspec import Raw, field

from server.protocol.chat import Conversation, JsonObject, check_prompt_fields


class TokenizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A text, or a conversation, to count and to see as tokens."""

    model: str | None = None
    prompt: str | None = None
    """Text; exactly one of `prompt` and `messages`."""
    messages: list[JsonObject] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    documents: list[JsonObject] | None = None
    chat_template: str | None = None
    """Refused: templates from a request are off."""
    chat_template_kwargs: JsonObject | None = None
    add_special_tokens: bool | None = None
    """Let the tokenizer add what it adds to a prompt; by default for `prompt`, not for `messages`."""
    return_token_strs: bool | None = None
    """Name each token by its piece of the vocabulary."""
    tools: Raw = field(default_factory=Raw)

    @property
    def conversation(self) -> Conversation | None:
        """What decides the prompt; None where it is given as text."""
        if self.messages is None:
            return None
        return Conversation(
            messages=self.messages,
            add_generation_prompt=self.add_generation_prompt,
            continue_final_message=self.continue_final_message,
            documents=self.documents,
            template_kwargs=self.chat_template_kwargs or {},
        )

    def check(self) -> None:
        """Refuse neither or both of prompt and messages.

        Raises:
            InvalidRequestError: naming the field.
        """
        if (self.prompt is None) == (self.messages is None):
            raise InvalidRequestError("give either prompt or messages.", param="prompt")
        if bytes(self.tools) not in (b"", b"null"):
            raise InvalidRequestError("tools: tool calls are not offered yet.", param="tools")
        if self.messages is not None:
            check_prompt_fields(self.messages, self.chat_template)


class TokenizeResponse(msgspec.Struct, frozen=True, kw_only=True):
    """Token ids of a text."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Token ids to turn into text."""

    model: str | None = None
    tokens: list[int]


class DetokenizeResponse(msgspec.Struct, frozen=True, kw_only=True):
    """Text of token ids."""

    prompt: str
