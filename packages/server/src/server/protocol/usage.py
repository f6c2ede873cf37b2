"""Token counts of a request."""

from __future__ import annotations

import msgspec


class PromptTokensDetails(msgspec.Struct, frozen=True):
    """What the prompt tokens were."""

    cached_tokens: int
    """Taken from the prefix cache instead of being computed."""


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Token counts; each prompt counts once, however many completions it has."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


def build_usage(num_prompt_tokens: int, num_completion_tokens: int, num_cached_tokens: int) -> Usage:
    """Return the counts in OpenAI's shape."""
    return Usage(
        prompt_tokens=num_prompt_tokens,
        completion_tokens=num_completion_tokens,
        total_tokens=num_prompt_tokens + num_completion_tokens,
        prompt_tokens_details=PromptTokensDetails(num_cached_tokens),
    )
