"""The core's own look at a request: it does not trust the frontend that checked it first.

Pure: a wire request and the limits of the engine in, a `Request` or an error out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.types.errors import InvalidRequestError
from engine.types.request import Request
from engine.types.sampling_params import MAX_BAD_WORDS, MAX_STOP_TOKEN_IDS, SamplingParams
from engine.types.wire import EngineCoreRequest

MAX_REQUEST_ID_LEN = 256
MAX_CACHE_SALT_LEN = 1024
# A bad word may be spelled with and without a leading space.
MAX_BAD_WORD_SEQUENCES = 2 * MAX_BAD_WORDS
MAX_BAD_WORD_TOKENS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLimits:
    """What a request must keep to, by the model and the configuration."""

    vocab_size: int
    max_model_len: int
    max_logprobs: int
    """-1 is no limit."""


def build_request(wire: EngineCoreRequest, limits: RequestLimits, draw_seed: int) -> Request:
    """Check a request and return it as the scheduler holds it.

    Args:
        wire: what the frontend sent.
        limits: of this engine.
        draw_seed: seed for a request that brings none.

    Raises:
        InvalidRequestError: a field is out of its range; the message names it.
    """
    params = wire.params
    prompt = _check_ids("prompt_token_ids", wire.prompt_token_ids, limits.vocab_size)
    if not len(prompt):
        raise InvalidRequestError("prompt_token_ids is empty; give at least one token.", param="prompt")
    if len(prompt) >= limits.max_model_len:
        raise InvalidRequestError(
            f"the prompt has {len(prompt)} tokens; with a context of {limits.max_model_len} it may have "
            f"{limits.max_model_len - 1} at most.",
            param="prompt",
            code="context_length_exceeded",
        )
    _check_text("request_id", wire.request_id, MAX_REQUEST_ID_LEN)
    if wire.cache_salt is not None:
        _check_text("cache_salt", wire.cache_salt, MAX_CACHE_SALT_LEN)
    if not math.isfinite(wire.arrival_time_s):
        raise InvalidRequestError(f"arrival_time_s must be finite, got {wire.arrival_time_s!r}.")
    _check_params(params, limits)
    eos = _check_ids("eos_token_ids", wire.eos_token_ids, limits.vocab_size)
    if len(eos) > MAX_STOP_TOKEN_IDS:
        raise InvalidRequestError(
            f"eos_token_ids holds {len(eos)} ids; at most {MAX_STOP_TOKEN_IDS} are allowed."
        )
    _check_bad_words(wire.bad_words_token_ids, limits.vocab_size)
    room = limits.max_model_len - len(prompt)
    max_tokens = room if params.max_tokens is None else min(params.max_tokens, room)
    return Request(
        wire.request_id,
        prompt,
        params,
        arrival_time_s=wire.arrival_time_s,
        max_total_tokens=len(prompt) + max_tokens,
        seed=draw_seed if params.seed is None else params.seed,
        eos_token_ids=tuple(wire.eos_token_ids),
        bad_words_token_ids=tuple(tuple(word) for word in wire.bad_words_token_ids),
        priority=wire.priority,
        cache_salt=wire.cache_salt,
    )


def _check_params(params: SamplingParams, limits: RequestLimits) -> None:
    vocab_size = limits.vocab_size
    _check_ids("stop_token_ids", params.stop_token_ids, vocab_size)
    _check_ids("allowed_token_ids", params.allowed_token_ids or (), vocab_size)
    _check_ids("logit_bias", params.logit_bias or (), vocab_size)
    _check_ids("logprob_token_ids", params.logprob_token_ids or (), vocab_size)
    if limits.max_logprobs < 0:
        return
    for name, value in (("logprobs", params.logprobs), ("prompt_logprobs", params.prompt_logprobs)):
        wanted = vocab_size if value == -1 else value
        if wanted is not None and wanted > limits.max_logprobs:
            raise InvalidRequestError(
                f"{name}={value} is more than the {limits.max_logprobs} that this server allows.", param=name
            )


def _check_bad_words(words: list[list[int]], vocab_size: int) -> None:
    if len(words) > MAX_BAD_WORD_SEQUENCES:
        raise InvalidRequestError(
            f"bad_words_token_ids holds {len(words)} sequences, more than {MAX_BAD_WORD_SEQUENCES}.",
            param="bad_words",
        )
    for word in words:
        if not 0 < len(word) <= MAX_BAD_WORD_TOKENS:
            raise InvalidRequestError(
                f"bad_words_token_ids holds a sequence of {len(word)} tokens; 1 to {MAX_BAD_WORD_TOKENS} are "
                "allowed.",
                param="bad_words",
            )
        _check_ids("bad_words_token_ids", word, vocab_size)


def _check_ids(name: str, ids: Iterable[int], vocab_size: int) -> NDArray[np.int32]:
    """Return the ids as int32 after checking each against the vocabulary."""
    values = np.array(list(ids))
    if not values.size:
        return np.zeros(0, dtype=np.int32)
    # Booleans, floats, nested lists and integers beyond 64 bits all end up as another kind or shape.
    if values.dtype.kind != "i" or values.ndim != 1:
        raise InvalidRequestError(f"{name} must hold token ids (integers).", param=name)
    is_outside = (values < 0) | (values >= vocab_size)
    if is_outside.any():
        raise InvalidRequestError(
            f"{name} holds token id {int(values[is_outside][0])}, but the vocabulary has ids 0 to "
            f"{vocab_size - 1}.",
            param=name,
        )
    return values.astype(np.int32)


def _check_text(name: str, value: str, max_len: int) -> None:
    if not 0 < len(value) <= max_len:
        raise InvalidRequestError(
            f"{name} has {len(value)} characters; 1 to {max_len} are allowed.", param=name
        )
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidRequestError(f"{name} holds a lone surrogate, which is no text.", param=name) from None
