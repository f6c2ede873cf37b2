"""What both kinds of completion share when they are written: ids, token counts, and the frame of a chunk.

A chunk is joined from byte strings that are made once per request: one is written per token.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass, field

import msgspec
from engine.types.outputs import RequestOutput

from server.protocol.generation import GenerationRequest
from server.protocol.usage import Usage, build_usage

encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerHead:
    """What every part of an answer repeats."""

    id: str
    """Made here; also the request's id inside the engine."""
    created: int
    """Unix time, seconds."""
    model: str


def build_head(prefix: str, model: str) -> AnswerHead:
    """Return the head of a new answer; `prefix` is OpenAI's for its kind."""
    return AnswerHead(id=f"{prefix}-{uuid.uuid4().hex}", created=int(time.time()), model=model)


@dataclass(slots=True)
class UsageMeter:
    """Counts tokens of a request; each prompt once."""

    num_completion_tokens: int = 0
    _prompts: dict[int, tuple[int, int]] = field(default_factory=dict)

    def count(self, index: int, output: RequestOutput) -> None:
        """Count an output of the prompt at `index`; with delta outputs, each one."""
        self._prompts[index] = len(output.prompt_token_ids), output.num_cached_tokens
        self.num_completion_tokens += sum(len(sequence.token_ids) for sequence in output.outputs)

    def build(self) -> Usage:
        """Return the counts so far."""
        prompts = self._prompts.values()
        return build_usage(
            sum(num_tokens for num_tokens, _ in prompts),
            self.num_completion_tokens,
            sum(num_cached for _, num_cached in prompts),
        )


class ChunkFrame:
    """Puts choices into chunks.

    Args:
        head: of the answer.
        object_name: OpenAI's name of the chunk.
        request: says whether chunks carry token counts.
        force_usage: end with token counts even if the request does not ask.
    """

    def __init__(
        self, head: AnswerHead, object_name: str, request: GenerationRequest, force_usage: bool
    ) -> None:
        options = request.stream_options
        self.ends_with_usage = force_usage or bool(options and options.include_usage)
        self._has_usage = bool(options and options.include_usage and options.continuous_usage_stats)
        self._open = b'data: {"id":%s,"object":%s,"created":%d,"model":%s,"choices":[' % (
            encode(head.id),
            encode(object_name),
            head.created,
            encode(head.model),
        )
        self._close = b'],"usage":null}\n\n' if self.ends_with_usage else b"]}\n\n"

    def frame(self, choice: bytes, meter: UsageMeter, extra: bytes = b"") -> bytes:
        """Return a chunk with one choice.

        Args:
            choice: its JSON.
            meter: the counts so far.
            extra: further members of the chunk, each with a comma before it.
        """
        if self._has_usage:
            return self._open + choice + b'],"usage":' + encode(meter.build()) + extra + b"}\n\n"
        if extra:
            return self._open + choice + b"]" + extra + self._close[1:]
        return self._open + choice + self._close

    def frame_usage(self, meter: UsageMeter) -> bytes:
        """Return the chunk without choices that ends a stream with its counts."""
        return self._open + b'],"usage":' + encode(meter.build()) + b"}\n\n"
