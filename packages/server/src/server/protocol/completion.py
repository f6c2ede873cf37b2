"""`/v1/completions`: request and answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from engine.types.errors import InvalidRequestError
from msgspec import Raw, field

from server.protocol.generation import GenerationRequest
from server.protocol.usage import Usage

_REFUSED = {
    "prompt_embeds": "embeddings as a prompt are not offered",
    "suffix": "filling in the middle is not offered",
}


class CompletionRequest(GenerationRequest, frozen=True, kw_only=True):
    """A text completion."""

    prompt: str | list[str | int | list[int]] | None = None
    """Text, token ids, or a list of either."""
    max_tokens: int | None = 16
    """Null is whatever fits the context; 0 is allowed with `echo`."""
    logprobs: int | bool | None = None
    """Candidates per token; true is 1."""
    echo: bool | None = None
    """Put the prompt before the answer."""
    suffix: Raw = field(default_factory=Raw)
    prompt_embeds: Raw = field(default_factory=Raw)

    @property
    def num_logprobs(self) -> int | None:
        """Candidates per token; None where none are wanted."""
        if isinstance(self.logprobs, bool):
            return 1 if self.logprobs else None
        return self.logprobs

    @property
    def is_echo_alone(self) -> bool:
        """The prompt is wanted and nothing after it."""
        return bool(self.echo) and self.max_tokens == 0

    def check(self) -> None:
        """Refuse what cannot be honoured.

        Raises:
            InvalidRequestError: naming the field.
        """
        self.check_generation()
        self.refuse_given(
            {name: reason for name, reason in _REFUSED.items() if bytes(getattr(self, name)) != b'""'}
        )

    def get_prompts(self) -> list[str | list[int]]:
        """Return the prompts, each text or token ids.

        Raises:
            InvalidRequestError: there is none, or kinds are mixed.
        """
        prompt = self.prompt
        if prompt is None:
            raise InvalidRequestError("prompt is missing; give text or token ids.", param="prompt")
        if isinstance(prompt, str):
            return [prompt]
        kinds = set(map(type, prompt))
        if not kinds:
            raise InvalidRequestError("prompt is empty; give at least one token.", param="prompt")
        if len(kinds) > 1:
            raise InvalidRequestError(
                "prompt mixes kinds; give texts, or token ids, or lists of token ids.", param="prompt"
            )
        if kinds == {int}:
            return [prompt]  # type: ignore[list-item]  # its only kind is int
        return prompt  # type: ignore[return-value]  # its only kind is str, or list


class CompletionLogprobs(msgspec.Struct, kw_only=True):
    """Four columns, an entry per token."""

    text_offset: list[int]
    """Characters of `text` before the token."""
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]


class CompletionChoice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One completion."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: str | None
    stop_reason: int | str | None
    prompt_logprobs: list[Mapping[int, Mapping[str, Any]] | None] | None = None
    """Per prompt token: id -> logprob, rank, decoded_token."""
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None


class CompletionResponse(msgspec.Struct, frozen=True, kw_only=True):
    """A finished request."""

    id: str
    object: str
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage
