"""The fields that chat and text completions share, and how they become `SamplingParams`.

A field left out or null takes the checkpoint's default, else the API's. Fields that would change the answer
and that this server cannot honour are declared, so that they are refused by name rather than dropped;
fields without any effect on an answer (`user`, `metadata`, ...) are accepted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

import msgspec
from engine.types.errors import InvalidRequestError
from engine.types.sampling_params import RequestOutputKind, SamplingParams
from msgspec import Raw, field

CLIENT_ID = re.compile(r"[A-Za-z0-9._:/@+=-]{1,128}")
"""What a client may call its request; anything else is not echoed."""

_PLAIN_FIELDS = (
    "n",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "stop_token_ids",
    "ignore_eos",
    "min_tokens",
    "prompt_logprobs",
    "logprob_token_ids",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "include_stop_str_in_output",
    "stream_interval",
    "logit_bias",
    "allowed_token_ids",
    "bad_words",
    "truncate_prompt_tokens",
)
"""Fields that `SamplingParams` has under the same name and with the same meaning."""

_REFUSED = {
    "response_format": "structured output is not offered yet; only the type text is taken",
    "structured_outputs": "structured output is not offered yet",
    "guided_json": "structured output is not offered yet",
    "guided_regex": "structured output is not offered yet",
    "guided_choice": "structured output is not offered yet",
    "guided_grammar": "structured output is not offered yet",
    "thinking_token_budget": "a budget for reasoning is not offered yet",
    "repetition_detection": "detection of repetitions is not offered",
    "logits_processors": "processors from a request are not offered",
    "vllm_xargs": "free arguments are not offered",
    "kv_transfer_params": "transfer of KV cache is not offered",
}


class StreamOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a stream carries besides text."""

    include_usage: bool | None = None
    """End the stream with a chunk of token counts."""
    continuous_usage_stats: bool | None = None
    """With `include_usage`: token counts in every chunk."""


class GenerationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What both kinds of completion take."""

    model: str | None = None
    n: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    min_tokens: int | None = None
    prompt_logprobs: int | None = None
    logprob_token_ids: list[int] | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None
    stream_interval: int | None = None
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    truncate_prompt_tokens: int | None = None
    truncation_side: Literal["left"] | None = None
    """Prompts are cut on the left."""
    add_special_tokens: bool | None = None
    priority: int | None = None
    cache_salt: str | None = None
    request_id: str | None = None
    """Written to the log beside this request; the answer has an id of its own."""
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None

    # Without effect on the answer.
    user: str | None = None
    metadata: Raw = field(default_factory=Raw)
    store: bool | None = None
    service_tier: str | None = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None

    # Refused by name.
    best_of: int | None = None
    use_beam_search: bool | None = None
    response_format: Raw = field(default_factory=Raw)
    structured_outputs: Raw = field(default_factory=Raw)
    guided_json: Raw = field(default_factory=Raw)
    guided_regex: Raw = field(default_factory=Raw)
    guided_choice: Raw = field(default_factory=Raw)
    guided_grammar: Raw = field(default_factory=Raw)
    thinking_token_budget: Raw = field(default_factory=Raw)
    repetition_detection: Raw = field(default_factory=Raw)
    logits_processors: Raw = field(default_factory=Raw)
    vllm_xargs: Raw = field(default_factory=Raw)
    kv_transfer_params: Raw = field(default_factory=Raw)

    def build_params(
        self,
        defaults: Mapping[str, Any],  # SamplingParams fields
        *,
        max_tokens: int | None,
        logprobs: int | None,
        prompt_logprobs: int | None,
        output_kind: RequestOutputKind,
    ) -> SamplingParams:
        """Return how to sample.

        Args:
            defaults: fields that the checkpoint wants unless the request says otherwise.
            max_tokens: None is whatever fits the context.
            logprobs: candidates per generated token.
            prompt_logprobs: candidates per prompt token.
            output_kind: what each output carries.

        Raises:
            InvalidRequestError: a value is out of its range.
        """
        fields = dict(defaults)
        for name in _PLAIN_FIELDS:
            value = getattr(self, name)
            if value is not None:
                fields[name] = value
        if self.stop is not None:
            fields["stop"] = [self.stop] if isinstance(self.stop, str) else self.stop
        fields.update(
            max_tokens=max_tokens, logprobs=logprobs, prompt_logprobs=prompt_logprobs, output_kind=output_kind
        )
        return SamplingParams(**fields)

    @property
    def num_sequences_per_prompt(self) -> int:
        """`n`, or 1."""
        return 1 if self.n is None else self.n

    def check_generation(self) -> None:
        """Refuse what cannot be honoured, and fields that contradict each other.

        Raises:
            InvalidRequestError: naming the field.
        """
        self.refuse_given(_REFUSED)
        if self.use_beam_search:
            raise InvalidRequestError(
                "use_beam_search is not offered; leave it out.", param="use_beam_search"
            )
        if self.best_of is not None and self.best_of != self.num_sequences_per_prompt:
            raise InvalidRequestError(
                f"best_of={self.best_of} is not offered: every answer is returned; use n.", param="best_of"
            )
        if self.stream_options is not None and not self.stream:
            raise InvalidRequestError("stream_options needs stream=true.", param="stream_options")
        if self.stream and self.prompt_logprobs is not None:
            raise InvalidRequestError(
                "prompt_logprobs cannot be streamed; use stream=false.", param="prompt_logprobs"
            )
        if self.request_id is not None and not CLIENT_ID.fullmatch(self.request_id):
            raise InvalidRequestError(
                "request_id must be 1 to 128 letters, digits or any of . _ : / @ + = -", param="request_id"
            )

    def refuse_given(self, reasons: Mapping[str, str]) -> None:
        """Refuse undecoded fields that are neither absent nor null.

        Raises:
            InvalidRequestError: naming the field and the reason.
        """
        for name, reason in reasons.items():
            raw = bytes(getattr(self, name))
            if raw in (b"", b"null") or (name == "response_format" and _is_text_format(raw)):
                continue
            raise InvalidRequestError(f"{name}: {reason}.", param=name)


def _is_text_format(raw: bytes) -> bool:
    return bool(msgspec.json.decode(raw) == {"type": "text"})
