"""A prompt and its parameters, checked and turned into what the core takes.

The one door for requests of every entry point: text limits before tokenizing, token ids against the
vocabulary, lengths against the context, words against the tokenizer. Runs in worker threads and remembers no
request. Knows nothing of HTTP, of queues or of how the tokens are computed.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from engine.config.engine_config import EngineConfig
from engine.frontend.parallel_sampling import build_sequence_ids, build_sequence_params
from engine.frontend.sampling_defaults import get_max_new_tokens
from engine.types.errors import InvalidRequestError
from engine.types.info import EngineInfo
from engine.types.sampling_params import INT64_MAX, INT64_MIN, SamplingParams
from engine.types.wire import EngineCoreRequest

if TYPE_CHECKING:
    from engine.frontend.tokenizer import Tokenizer

Prompt = str | Sequence[int] | Mapping[str, Any]
"""Text, token ids, `{"prompt": text}` or `{"prompt_token_ids": ids}`."""

MAX_CACHE_SALT_LEN = 512
MAX_BAD_WORDS_TOKENS = 4096
"""Over all bad words of a request; each costs the sampler a comparison per step."""
CHARACTERS_PER_TOKEN = 16
"""Text up to this many characters per token of context is tokenized without asking for the longest token."""
MAX_CHARACTERS_PER_TOKEN = 256
"""A token may stand for a long run of blanks; nothing real is longer than this."""


@dataclass(slots=True, kw_only=True)
class ProcessedInput:
    """A checked request: what the output processor keeps and what the core gets."""

    prompt: str | None
    """Text of the prompt; None where ids came in."""
    prompt_token_ids: list[int]
    params: SamplingParams
    """The caller's, with `max_tokens` filled in."""
    requests: list[EngineCoreRequest]
    """One per sequence, n in all."""


class InputProcessor:
    """Checks prompts and parameters against one running engine; safe to call from several threads.

    Args:
        config: resolved.
        info: of the running core; its `max_model_len` and `vocab_size` are the limits.
        tokenizer: None where the checkpoint has none: then only token ids come in and go out.
    """

    def __init__(self, config: EngineConfig, info: EngineInfo, tokenizer: Tokenizer | None) -> None:
        self.max_model_len = info.max_model_len
        self.vocab_size = info.vocab_size
        self._tokenizer = tokenizer
        self._max_logprobs = config.sampling.max_logprobs
        self._max_new_tokens = get_max_new_tokens(config)
        self._has_priorities = config.scheduler.policy == "priority"
        eos_token_ids = list(config.checkpoint.eos_token_ids) if config.checkpoint else []
        if not eos_token_ids and tokenizer is not None:
            eos_token_ids = list(tokenizer.eos_token_ids)
        self._eos_token_ids = [i for i in dict.fromkeys(eos_token_ids) if 0 <= i < self.vocab_size]
        self._longest_token_lock = threading.Lock()
        self._longest_token: int | None = None

    def process(
        self,
        prompt: Prompt,
        params: SamplingParams,
        *,
        internal_id: str,
        arrival_time_s: float,
        priority: int = 0,
        cache_salt: str | None = None,
        add_special_tokens: bool = True,
        fit_max_tokens: bool = False,
    ) -> ProcessedInput:
        """Return the request as the core takes it.

        Args:
            prompt: see `Prompt`.
            params: as the caller gave them.
            internal_id: unique for the life of the core.
            arrival_time_s: on the monotonic clock.
            priority: lower runs first; needs the priority policy.
            cache_salt: keeps cached prefixes apart from those under another salt.
            add_special_tokens: let the tokenizer add what it adds to a prompt (a chat template has done so).
            fit_max_tokens: lower a `max_tokens` that does not fit the context instead of refusing it.

        Raises:
            InvalidRequestError: naming the parameter, its value and what to do.
        """
        self._check_routing(priority, cache_salt)
        self._check_params(params)
        text, token_ids = self._get_token_ids(prompt, add_special_tokens)
        token_ids = self._truncate(token_ids, params.truncate_prompt_tokens)
        params = self._fill_max_tokens(params, len(token_ids), fit_max_tokens)
        eos_token_ids = [] if params.ignore_eos else self._eos_token_ids
        bad_words_token_ids = self._tokenize_bad_words(params.bad_words)
        requests = [
            EngineCoreRequest(
                request_id=sequence_id,
                prompt_token_ids=token_ids,
                params=sequence_params,
                arrival_time_s=arrival_time_s,
                eos_token_ids=eos_token_ids,
                bad_words_token_ids=bad_words_token_ids,
                priority=priority,
                cache_salt=cache_salt,
            )
            for sequence_id, sequence_params in zip(
                build_sequence_ids(internal_id, params.n), build_sequence_params(params), strict=True
            )
        ]
        return ProcessedInput(prompt=text, prompt_token_ids=token_ids, params=params, requests=requests)

    def tokenize(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the token ids of a text within the limits of a prompt's characters.

        Raises:
            InvalidRequestError: not valid text, too long, or there is no tokenizer.
        """
        if self._tokenizer is None:
            raise InvalidRequestError(
                "This model has no tokenizer; give prompt_token_ids instead of text.", param="prompt"
            )
        check_text(text, "prompt")
        self._check_num_characters(text)
        return self._tokenizer.encode(text, add_special_tokens=add_special_tokens)

    def _get_token_ids(self, prompt: Prompt, add_special_tokens: bool) -> tuple[str | None, list[int]]:
        if isinstance(prompt, Mapping):
            prompt = _unwrap(prompt)
        text: str | None = None
        token_ids: list[int]
        if isinstance(prompt, str):
            text = prompt
            token_ids = self.tokenize(text, add_special_tokens=add_special_tokens)
        elif isinstance(prompt, list | tuple):
            token_ids = list(prompt)
            # Cheap before exact: a list far longer than any prompt is not walked element by element.
            if len(token_ids) > self.max_model_len * CHARACTERS_PER_TOKEN:
                raise self._too_long(len(token_ids))
            check_token_ids(token_ids, self.vocab_size, "prompt")
        else:
            raise InvalidRequestError(
                f"prompt must be text, a list of token ids, or a mapping with prompt or prompt_token_ids, "
                f"got {type(prompt).__name__}.",
                param="prompt",
            )
        if not token_ids:
            raise InvalidRequestError("prompt is empty; give at least one token.", param="prompt")
        return text, token_ids

    def _check_num_characters(self, text: str) -> None:
        """Refuse text that cannot fit the context however well it is tokenized, before tokenizing it."""
        if len(text) <= self.max_model_len * CHARACTERS_PER_TOKEN:
            return
        limit = self.max_model_len * self._get_longest_token()
        if len(text) > limit:
            raise InvalidRequestError(
                f"This model's maximum context length is {self.max_model_len} tokens; the prompt has "
                f"{len(text)} characters, and no more than {limit} can fit. Shorten the prompt.",
                param="prompt",
                code="context_length_exceeded",
            )

    def _get_longest_token(self) -> int:
        """Characters that one token can stand for, at most."""
        assert self._tokenizer is not None
        with self._longest_token_lock:
            if self._longest_token is None:
                tokenizer = self._tokenizer
                longest = max(len(tokenizer.token_bytes(i)) for i in range(tokenizer.vocab_size))
                self._longest_token = min(max(longest, CHARACTERS_PER_TOKEN), MAX_CHARACTERS_PER_TOKEN)
            return self._longest_token

    def _truncate(self, token_ids: list[int], num_tokens: int | None) -> list[int]:
        if num_tokens is None:
            return token_ids
        if num_tokens > self.max_model_len:
            raise InvalidRequestError(
                f"truncate_prompt_tokens={num_tokens} is more than the context length of "
                f"{self.max_model_len}; lower it or use -1.",
                param="truncate_prompt_tokens",
            )
        # -1 keeps what the context holds, less the one token that must still be generated.
        return token_ids[-(num_tokens if num_tokens > 0 else self.max_model_len - 1) :]

    def _fill_max_tokens(self, params: SamplingParams, num_prompt_tokens: int, fit: bool) -> SamplingParams:
        room = self.max_model_len - num_prompt_tokens
        if room < 1:
            raise self._too_long(num_prompt_tokens)
        max_tokens = params.max_tokens
        if max_tokens is None:
            max_tokens = room if self._max_new_tokens is None else min(room, self._max_new_tokens)
            max_tokens = max(max_tokens, min(params.min_tokens, room))
        elif max_tokens > room and fit:
            max_tokens = room
        elif max_tokens > room:
            raise InvalidRequestError(
                f"max_tokens={max_tokens} does not fit: this model's maximum context length is "
                f"{self.max_model_len} tokens and the prompt has {num_prompt_tokens} tokens, which leaves "
                f"{room}. Lower max_tokens, leave it out, or shorten the prompt.",
                param="max_tokens",
                code="context_length_exceeded",
            )
        if params.min_tokens > max_tokens:
            raise InvalidRequestError(
                f"min_tokens={params.min_tokens} is more than the {max_tokens} tokens that may be generated; "
                "lower min_tokens.",
                param="min_tokens",
            )
        if max_tokens == params.max_tokens:
            return params
        return msgspec.structs.replace(params, max_tokens=max_tokens)

    def _too_long(self, num_prompt_tokens: int) -> InvalidRequestError:
        return InvalidRequestError(
            f"This model's maximum context length is {self.max_model_len} tokens, but the prompt has "
            f"{num_prompt_tokens} tokens and at least one must be generated. Shorten the prompt or set "
            "truncate_prompt_tokens.",
            param="prompt",
            code="context_length_exceeded",
        )

    def _check_routing(self, priority: int, cache_salt: str | None) -> None:
        if type(priority) is not int or not INT64_MIN <= priority <= INT64_MAX:
            raise InvalidRequestError(
                f"priority must be an integer of 64 bits, got {priority!r}.", param="priority"
            )
        if priority != 0 and not self._has_priorities:
            raise InvalidRequestError(
                f"priority={priority} needs scheduler.policy=priority; this engine serves by arrival.",
                param="priority",
            )
        if cache_salt is None:
            return
        if not isinstance(cache_salt, str) or not 0 < len(cache_salt) <= MAX_CACHE_SALT_LEN:
            raise InvalidRequestError(
                f"cache_salt must be a string of 1 to {MAX_CACHE_SALT_LEN} characters.", param="cache_salt"
            )
        check_text(cache_salt, "cache_salt")

    def _check_params(self, params: SamplingParams) -> None:
        for name, value in (("logprobs", params.logprobs), ("prompt_logprobs", params.prompt_logprobs)):
            self._check_num_logprobs(name, value)
        for name, ids in (
            ("stop_token_ids", params.stop_token_ids),
            ("allowed_token_ids", params.allowed_token_ids),
            ("logprob_token_ids", params.logprob_token_ids),
            ("logit_bias", params.logit_bias),
        ):
            if ids:
                check_token_ids(list(ids), self.vocab_size, name)
        if params.min_tokens > self.max_model_len:
            raise InvalidRequestError(
                f"min_tokens={params.min_tokens} is more than the context length of {self.max_model_len}.",
                param="min_tokens",
            )
        for name, words in (("stop", params.stop), ("bad_words", params.bad_words)):
            if words and self._tokenizer is None:
                raise InvalidRequestError(
                    f"{name} needs a tokenizer, which this model does not have; leave it out.", param=name
                )
            for word in words:
                check_text(word, name)

    def _check_num_logprobs(self, name: str, value: int | None) -> None:
        if value is None or self._max_logprobs == -1:
            return
        if value == -1 or value > self._max_logprobs:
            asked = f"{name}=-1 (the whole vocabulary)" if value == -1 else f"{name}={value}"
            raise InvalidRequestError(
                f"{asked} is more than this engine allows: at most {self._max_logprobs} "
                "(sampling.max_logprobs).",
                param=name,
            )

    def _tokenize_bad_words(self, bad_words: Sequence[str]) -> list[list[int]]:
        """Return the token sequences of each word, as it stands at the start of a text and after a blank."""
        if not bad_words:
            return []
        assert self._tokenizer is not None
        sequences: dict[tuple[int, ...], None] = {}
        for word in bad_words:
            bare = word.lstrip()
            for spelling in (bare, " " + bare) if bare else (word,):
                ids = self._tokenizer.encode(spelling, add_special_tokens=False)
                if ids:
                    sequences[tuple(ids)] = None
        if sum(map(len, sequences)) > MAX_BAD_WORDS_TOKENS:
            raise InvalidRequestError(
                f"bad_words come to more than {MAX_BAD_WORDS_TOKENS} tokens; give fewer or shorter words.",
                param="bad_words",
            )
        return [list(ids) for ids in sequences]


def check_text(text: str, param: str) -> None:
    """Refuse a string that is no Unicode text.

    Raises:
        InvalidRequestError: it holds a surrogate without its partner.
    """
    if text.isascii():
        return
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidRequestError(
            f"{param} is not valid Unicode: lone surrogate U+{ord(text[error.start]):04X} at character "
            f"{error.start}.",
            param=param,
        ) from None


def check_token_ids(token_ids: list[Any], vocab_size: int, param: str) -> None:  # ids as they came in
    """Refuse anything but integers in [0, vocab_size).

    Raises:
        InvalidRequestError: naming the first id that is wrong.
    """
    # Set and min / max run in C: a long prompt costs microseconds, not a Python loop.
    if set(map(type, token_ids)) - {int}:
        wrong = next(value for value in token_ids if type(value) is not int)
        raise InvalidRequestError(f"{param} must hold integer token ids, got {wrong!r}.", param=param)
    if not token_ids or (min(token_ids) >= 0 and max(token_ids) < vocab_size):
        return
    wrong = next(value for value in token_ids if not 0 <= value < vocab_size)
    raise InvalidRequestError(
        f"{param} holds token id {wrong}, which is out of vocabulary; ids run from 0 to {vocab_size - 1}.",
        param=param,
    )


def _unwrap(prompt: Mapping[str, Any]) -> str | Sequence[int]:
    keys = set(prompt)
    if keys == {"prompt"}:
        text: str = prompt["prompt"]
        if not isinstance(text, str):
            raise InvalidRequestError(
                f'prompt["prompt"] must be text, got {type(text).__name__}; ids go under prompt_token_ids.',
                param="prompt",
            )
        return text
    if keys == {"prompt_token_ids"}:
        ids: Sequence[int] = prompt["prompt_token_ids"]
        if isinstance(ids, str | bytes) or not isinstance(ids, Sequence):
            raise InvalidRequestError(
                f'prompt["prompt_token_ids"] must be a list of ids, got {type(ids).__name__}.', param="prompt"
            )
        return ids
    raise InvalidRequestError(
        "a prompt given as a mapping needs exactly one key, prompt or prompt_token_ids; got "
        f"{sorted(map(str, keys))}.",
        param="prompt",
    )
