"""Text completions written: whole as one object, streamed as chunks.

Choices are numbered over prompts first, then over the n completions of each. Knows nothing of sockets.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing

from engine.types.outputs import CompletionOutput, RequestOutput

from server.chunks import AnswerHead, ChunkFrame, UsageMeter, encode
from server.logprobs import CompletionLogprobsWriter, TokenStyle, build_prompt_logprobs, join_logprobs
from server.protocol.completion import (
    CompletionChoice,
    CompletionLogprobs,
    CompletionRequest,
    CompletionResponse,
)
from server.sse import DONE

OBJECT = "text_completion"


class CompletionAnswer:
    """Writes the answer to one request.

    Args:
        request: as it came.
        head: of the answer.
        style: how tokens are written.
        decode: token ids of a prompt to text, for `echo` of prompts given as ids.
    """

    def __init__(
        self,
        request: CompletionRequest,
        head: AnswerHead,
        style: TokenStyle,
        decode: Callable[[list[int]], str],
    ) -> None:
        self._request = request
        self._head = head
        self._style = style
        self._decode = decode
        self._n = request.num_sequences_per_prompt
        self._meter = UsageMeter()

    def build(self, outputs: Sequence[RequestOutput]) -> CompletionResponse:
        """Return the whole answer, from the last output of each prompt."""
        choices = []
        for index, output in enumerate(outputs):
            output = self._without_answer(output)
            self._meter.count(index, output)
            choices += [self._build_choice(index, output, sequence) for sequence in output.outputs]
        return CompletionResponse(
            id=self._head.id,
            object=OBJECT,
            created=self._head.created,
            model=self._head.model,
            choices=choices,
            usage=self._meter.build(),
        )

    async def stream(
        self, outputs: AsyncGenerator[tuple[int, RequestOutput]], force_usage: bool
    ) -> AsyncGenerator[bytes]:
        """Yield the answer as events, from delta outputs."""
        frame = ChunkFrame(self._head, OBJECT, self._request, force_usage)
        writers: dict[int, _ChoiceStream] = {}
        async with aclosing(outputs):
            async for index, output in outputs:
                output = self._without_answer(output)
                self._meter.count(index, output)
                for sequence in output.outputs:
                    choice = index * self._n + sequence.index
                    writer = writers.get(choice)
                    if writer is None:
                        writer = writers[choice] = _ChoiceStream(self._request, choice, self._style)
                        if self._request.echo:
                            echo = self._get_prompt_text(output)
                            yield frame.frame(writer.write_prompt(output, echo), self._meter)
                        elif self._request.return_token_ids:
                            yield frame.frame(writer.write_prompt(output, ""), self._meter)
                    written = writer.write(sequence)
                    if written is not None:
                        yield frame.frame(written, self._meter)
        if frame.ends_with_usage:
            yield frame.frame_usage(self._meter)
        yield DONE

    def _build_choice(
        self, index: int, output: RequestOutput, sequence: CompletionOutput
    ) -> CompletionChoice:
        request = self._request
        text = sequence.text
        logprobs: CompletionLogprobs | None = None
        writer = CompletionLogprobsWriter(request.num_logprobs or 0, self._style)
        if request.echo:
            echo = self._get_prompt_text(output)
            text = echo + text
            if request.num_logprobs is not None:
                logprobs = _write_prompt(writer, output, echo)
        if sequence.logprobs is not None:
            answer = writer.write(sequence)
            logprobs = answer if logprobs is None else join_logprobs(logprobs, answer)
        return CompletionChoice(
            index=index * self._n + sequence.index,
            text=text,
            logprobs=logprobs,
            finish_reason=sequence.finish_reason,
            stop_reason=sequence.stop_reason,
            prompt_logprobs=(
                build_prompt_logprobs(output.prompt_logprobs) if request.prompt_logprobs is not None else None
            ),
            token_ids=sequence.token_ids if request.return_token_ids else None,
            prompt_token_ids=output.prompt_token_ids if request.return_token_ids else None,
        )

    def _get_prompt_text(self, output: RequestOutput) -> str:
        return output.prompt if output.prompt is not None else self._decode(output.prompt_token_ids)

    def _without_answer(self, output: RequestOutput) -> RequestOutput:
        """Drop the one token that had to be generated where only the prompt was wanted."""
        if self._request.is_echo_alone:
            for sequence in output.outputs:
                sequence.text, sequence.token_ids, sequence.finish_reason = "", [], "length"
                sequence.logprobs = [] if sequence.logprobs is not None else None
                sequence.stop_reason = None
        return output


class _ChoiceStream:
    """Chunks of one choice."""

    def __init__(self, request: CompletionRequest, index: int, style: TokenStyle) -> None:
        self._request = request
        self._logprobs = CompletionLogprobsWriter(request.num_logprobs or 0, style)
        self._open = b'{"index":%d,"text":' % index

    def write_prompt(self, output: RequestOutput, echo: str) -> bytes:
        """Return the choice of the first chunk: the prompt, before any answer."""
        logprobs = b"null"
        if self._request.echo and self._request.num_logprobs is not None:
            logprobs = encode(_write_prompt(self._logprobs, output, echo))
        ids = b""
        if self._request.return_token_ids:
            ids = b',"prompt_token_ids":' + encode(output.prompt_token_ids) + b',"token_ids":[]'
        return self._join(echo, logprobs, b'null,"stop_reason":null', ids)

    def write(self, sequence: CompletionOutput) -> bytes | None:
        """Return the choice of the next chunk; None where there is nothing to tell yet."""
        wants_ids = self._request.return_token_ids
        if not (sequence.text or sequence.finish_reason or sequence.logprobs or wants_ids):
            return None
        logprobs = b"null" if sequence.logprobs is None else encode(self._logprobs.write(sequence))
        ids = b',"token_ids":' + encode(sequence.token_ids) if wants_ids else b""
        if sequence.finish_reason is None:
            return self._join(sequence.text, logprobs, b'null,"stop_reason":null', ids)
        end = encode(sequence.finish_reason) + b',"stop_reason":' + encode(sequence.stop_reason)
        return self._join(sequence.text, logprobs, end, ids)

    def _join(self, text: str, logprobs: bytes, end: bytes, ids: bytes) -> bytes:
        return (
            self._open + encode(text) + b',"logprobs":' + logprobs + b',"finish_reason":' + end + ids + b"}"
        )


def _write_prompt(writer: CompletionLogprobsWriter, output: RequestOutput, echo: str) -> CompletionLogprobs:
    positions = output.prompt_logprobs or [None] * len(output.prompt_token_ids)
    pieces = output.prompt_text_pieces or [""] * len(output.prompt_token_ids)
    return writer.write_prompt(output.prompt_token_ids, positions, pieces, echo)
