"""How one request is sampled: the fields and limits that users of vLLM know, validated on construction.

Knows ranges that hold for every model. What depends on the model (vocabulary, context length, the limit on
logprobs) is checked by the input processor and once more by the core.
"""

from __future__ import annotations

import math
from enum import IntEnum

import msgspec

from engine.types.errors import InvalidRequestError

MAX_N = 128
MAX_STOP_STRINGS = 16
MAX_STOP_STRING_LEN = 1024
MAX_STOP_TOKEN_IDS = 128
MAX_BAD_WORDS = 128
MAX_BAD_WORD_LEN = 1024
MAX_ALLOWED_TOKEN_IDS = 65_536
MAX_LOGIT_BIAS = 1024
MAX_LOGPROB_TOKEN_IDS = 128
MIN_TEMPERATURE = 0.01
GREEDY_BELOW = 1e-5
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1


class RequestOutputKind(IntEnum):
    """What each `RequestOutput` of a stream carries."""

    CUMULATIVE = 0
    DELTA = 1
    FINAL_ONLY = 2


class SamplingParams(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """Sampling parameters of one request; immutable, compared by value, safe to share.

    Raises:
        InvalidRequestError: on construction, naming the field, its value and the allowed range.

    Source: field names, defaults and limits follow vLLM's `SamplingParams`.
    """

    n: int = 1
    """Number of completions of the prompt."""
    presence_penalty: float = 0.0
    """Subtracted from the logit of each token already generated; [-2, 2]."""
    frequency_penalty: float = 0.0
    """Subtracted per occurrence among the generated tokens; [-2, 2]."""
    repetition_penalty: float = 1.0
    """Divides positive and multiplies negative logits of tokens in prompt or output; > 0."""
    temperature: float = 1.0
    """[0, 2]; 0 is greedy, (0, 0.01) is raised to 0.01."""
    top_p: float = 1.0
    """Keep the smallest set of tokens with this probability mass; (0, 1]."""
    top_k: int = 0
    """Keep the k most likely tokens; 0 or -1 keeps all."""
    min_p: float = 0.0
    """Drop tokens less likely than this share of the most likely one; [0, 1]."""
    seed: int | None = None
    """Seed of this request, independent of batch and neighbours; -1 is none."""
    stop: list[str] = []
    """Strings that end the output; they are not part of it unless asked for."""
    stop_token_ids: list[int] = []
    """Token ids that end the output, kept as its last token."""
    ignore_eos: bool = False
    """Go on past the model's end-of-sequence tokens."""
    max_tokens: int | None = 16
    """Most tokens to generate; None is whatever fits the context."""
    min_tokens: int = 0
    """Tokens to generate before end-of-sequence or a stop may occur."""
    logprobs: int | None = None
    """Number of most likely tokens to report per generated token; -1 is the whole vocabulary."""
    prompt_logprobs: int | None = None
    """The same for each prompt token; switches off reading the prefix cache."""
    logprob_token_ids: list[int] | None = None
    """Report logprobs of exactly these ids besides the sampled one."""
    detokenize: bool = True
    """Produce text; False yields token ids only and needs no tokenizer."""
    skip_special_tokens: bool = True
    """Leave special tokens out of the text."""
    spaces_between_special_tokens: bool = True
    """Put a space between special tokens that stand in the text."""
    include_stop_str_in_output: bool = False
    """Keep the stop string that ended the output."""
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
    """Cumulative, delta or only the last output."""
    stream_interval: int = 1
    """Least number of new tokens per streamed output; the first and the last always come."""
    logit_bias: dict[int, float] | None = None
    """Added to the logits of these ids, each in [-100, 100]."""
    allowed_token_ids: list[int] | None = None
    """Only these ids may be sampled."""
    bad_words: list[str] = []
    """Words that must not be generated."""
    skip_reading_prefix_cache: bool | None = None
    """Compute the whole prompt anew; None decides by `prompt_logprobs`."""
    truncate_prompt_tokens: int | None = None
    """Keep only the last so many prompt tokens; -1 is the context length."""

    @property
    def is_greedy(self) -> bool:
        """True where the most likely token is taken."""
        return self.temperature < GREEDY_BELOW

    @property
    def reads_prefix_cache(self) -> bool:
        """Whether cached blocks may stand in for computing the prompt."""
        if self.skip_reading_prefix_cache is not None:
            return not self.skip_reading_prefix_cache
        return self.prompt_logprobs is None

    def __post_init__(self) -> None:
        self._check_flags()
        self._check_numbers()
        self._check_lists()
        if 0 < self.temperature < MIN_TEMPERATURE and not self.is_greedy:
            msgspec.structs.force_setattr(self, "temperature", MIN_TEMPERATURE)
        if self.seed == -1:
            msgspec.structs.force_setattr(self, "seed", None)
        if self.top_k == -1:
            msgspec.structs.force_setattr(self, "top_k", 0)
        if self.stop_token_ids:
            msgspec.structs.force_setattr(self, "stop_token_ids", list(dict.fromkeys(self.stop_token_ids)))

    def _check_numbers(self) -> None:
        _check_int("n", self.n, 1, MAX_N)
        _check_float("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _check_float("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _check_float("repetition_penalty", self.repetition_penalty, 0.0, 100.0, low_open=True)
        _check_float("temperature", self.temperature, 0.0, 2.0)
        _check_float("top_p", self.top_p, 0.0, 1.0, low_open=True)
        _check_int("top_k", self.top_k, -1, 2**31 - 1)
        _check_float("min_p", self.min_p, 0.0, 1.0)
        if self.seed is not None:
            _check_int("seed", self.seed, INT64_MIN, INT64_MAX)
        if self.max_tokens is not None:
            _check_int("max_tokens", self.max_tokens, 1, 2**31 - 1)
        _check_int("min_tokens", self.min_tokens, 0, 2**31 - 1)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidRequestError(
                f"min_tokens={self.min_tokens} is more than max_tokens={self.max_tokens}; lower one of them.",
                param="min_tokens",
            )
        for name, value in (("logprobs", self.logprobs), ("prompt_logprobs", self.prompt_logprobs)):
            if value is not None:
                _check_int(name, value, -1, 2**31 - 1)
        _check_int("stream_interval", self.stream_interval, 1, 2**20)
        if self.truncate_prompt_tokens is not None:
            _check_int("truncate_prompt_tokens", self.truncate_prompt_tokens, -1, 2**31 - 1)
            if self.truncate_prompt_tokens == 0:
                raise InvalidRequestError(
                    "truncate_prompt_tokens=0 leaves no prompt; use a positive number or -1.",
                    param="truncate_prompt_tokens",
                )
        if self.n > 1 and self.is_greedy:
            raise InvalidRequestError(
                f"n={self.n} with temperature={self.temperature!r} would give the same text n times; "
                "use n=1 or a temperature above 0.",
                param="n",
            )

    def _check_flags(self) -> None:
        for name in _FLAGS:
            value = getattr(self, name)
            if not isinstance(value, bool):
                raise InvalidRequestError(f"{name} must be True or False, got {value!r}.", param=name)

    def _check_lists(self) -> None:
        _check_strings("stop", self.stop, MAX_STOP_STRINGS, MAX_STOP_STRING_LEN)
        _check_strings("bad_words", self.bad_words, MAX_BAD_WORDS, MAX_BAD_WORD_LEN)
        if self.stop and not self.detokenize:
            raise InvalidRequestError("stop strings need detokenize=True; use stop_token_ids.", param="stop")
        _check_ids("stop_token_ids", self.stop_token_ids, MAX_STOP_TOKEN_IDS, allow_empty=True)
        if self.allowed_token_ids is not None:
            _check_ids("allowed_token_ids", self.allowed_token_ids, MAX_ALLOWED_TOKEN_IDS, allow_empty=False)
        if self.logprob_token_ids is not None:
            _check_ids("logprob_token_ids", self.logprob_token_ids, MAX_LOGPROB_TOKEN_IDS, allow_empty=False)
        if self.logit_bias is not None:
            if not isinstance(self.logit_bias, dict):
                raise InvalidRequestError(
                    f"logit_bias must map token ids to numbers, got {self.logit_bias!r}.", param="logit_bias"
                )
            if len(self.logit_bias) > MAX_LOGIT_BIAS:
                raise InvalidRequestError(
                    f"logit_bias holds {len(self.logit_bias)} entries; at most {MAX_LOGIT_BIAS} are allowed.",
                    param="logit_bias",
                )
            _check_ids("logit_bias", list(self.logit_bias), MAX_LOGIT_BIAS, allow_empty=True)
            for value in self.logit_bias.values():
                _check_float("logit_bias", value, -100.0, 100.0)


_FLAGS = (
    "ignore_eos",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "include_stop_str_in_output",
    "detokenize",
)


def _check_int(name: str, value: object, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidRequestError(f"{name} must be an integer, got {value!r}.", param=name)
    if not low <= value <= high:
        raise InvalidRequestError(f"{name} must be between {low} and {high}, got {value!r}.", param=name)


def _check_float(name: str, value: object, low: float, high: float, *, low_open: bool = False) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidRequestError(f"{name} must be a number, got {value!r}.", param=name)
    if isinstance(value, int) and not INT64_MIN <= value <= INT64_MAX:
        raise InvalidRequestError(
            f"{name} must be in [{low:g}, {high:g}], got an integer beyond 64 bits.", param=name
        )
    # NaN fails every comparison, so the finite check comes first and says what is wrong.
    if not math.isfinite(value):
        raise InvalidRequestError(f"{name} must be finite, got {value!r}.", param=name)
    if value < low or value > high or (low_open and value == low):
        bracket = "(" if low_open else "["
        raise InvalidRequestError(
            f"{name} must be in {bracket}{low:g}, {high:g}], got {value!r}.", param=name
        )


def _check_list(name: str, values: object) -> None:
    # Text has a length and items too: its characters would quietly be taken one by one.
    if not isinstance(values, list | tuple):
        raise InvalidRequestError(f"{name} must be a list, got {values!r}.", param=name)


def _check_strings(name: str, values: list[str], max_count: int, max_len: int) -> None:
    _check_list(name, values)
    if len(values) > max_count:
        raise InvalidRequestError(
            f"{name} holds {len(values)} strings; at most {max_count} are allowed.", param=name
        )
    for value in values:
        if not isinstance(value, str):
            raise InvalidRequestError(f"{name} must hold strings, got {value!r}.", param=name)
        if not value:
            raise InvalidRequestError(f"{name} must not hold an empty string; leave it out.", param=name)
        if len(value) > max_len:
            raise InvalidRequestError(
                f"{name} holds a string of {len(value)} characters; at most {max_len} are allowed.",
                param=name,
            )


def _check_ids(name: str, ids: list[int], max_count: int, *, allow_empty: bool) -> None:
    _check_list(name, ids)
    if not ids and not allow_empty:
        raise InvalidRequestError(f"{name} must not be empty; leave it out to allow all.", param=name)
    if len(ids) > max_count:
        raise InvalidRequestError(
            f"{name} holds {len(ids)} ids; at most {max_count} are allowed.", param=name
        )
    for token_id in ids:
        _check_int(name, token_id, 0, 2**31 - 1)
