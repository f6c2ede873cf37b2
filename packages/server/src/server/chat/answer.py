"""Chat answers written: whole as one object, streamed as chunks.

The message of a choice comes from text alone; what else a model may say (reasoning, tool calls) would be told
apart between the outputs and this writer. Knows nothing of sockets.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from engine.types.outputs import CompletionOutput, RequestOutput

from server.chunks import AnswerHead, ChunkFrame, UsageMeter, encode
from server.logprobs import TokenStyle, build_chat_logprobs, build_prompt_logprobs
from server.protocol.chat import (
    ChatAnswerMessage,
    ChatChoice,
    ChatChoiceWithIds,
    ChatCompletionRequest,
    ChatCompletionResponse,
    ChatLogprobs,
)
from server.sse import DONE

OBJECT = "chat.completion"
CHUNK_OBJECT = "chat.completion.chunk"
ROLE = "assistant"


class ChatAnswer:
    """Writes the answer to one request.

    Args:
        request: as it came.
        head: of the answer.
        style: how tokens are written.
    """

    def __init__(self, request: ChatCompletionRequest, head: AnswerHead, style: TokenStyle) -> None:
        self._request = request
        self._head = head
        self._style = style
        self._echo = _get_echo(request)
        self._num_top = len(request.logprob_token_ids or ()) or request.top_logprobs or 0
        self._meter = UsageMeter()

    def build(self, output: RequestOutput) -> ChatCompletionResponse:
        """Return the whole answer, from the last output."""
        request = self._request
        self._meter.count(0, output)
        return ChatCompletionResponse(
            id=self._head.id,
            object=OBJECT,
            created=self._head.created,
            model=self._head.model,
            choices=[self._build_choice(sequence) for sequence in output.outputs],
            usage=self._meter.build(),
            prompt_logprobs=build_prompt_logprobs(output.prompt_logprobs),
            prompt_token_ids=output.prompt_token_ids if request.return_token_ids else None,
        )

    async def stream(
        self, outputs: AsyncGenerator[tuple[int, RequestOutput]], force_usage: bool
    ) -> AsyncGenerator[bytes]:
        """Yield the answer as events, from delta outputs."""
        frame = ChunkFrame(self._head, CHUNK_OBJECT, self._request, force_usage)
        opened: set[int] = set()
        async with aclosing(outputs):
            async for _, output in outputs:
                self._meter.count(0, output)
                for sequence in output.outputs:
                    if sequence.index not in opened:
                        opened.add(sequence.index)
                        yield frame.frame(
                            self._open_choice(sequence.index), self._meter, self._prompt_ids(output)
                        )
                    written = self._write_choice(sequence)
                    if written is not None:
                        yield frame.frame(written, self._meter)
        if frame.ends_with_usage:
            yield frame.frame_usage(self._meter)
        yield DONE

    def _build_choice(self, sequence: CompletionOutput) -> ChatChoice:
        message = ChatAnswerMessage(role=ROLE, content=self._echo + sequence.text)
        logprobs = None
        if sequence.logprobs is not None:
            logprobs = ChatLogprobs(build_chat_logprobs(sequence, self._num_top, self._style))
        if self._request.return_token_ids:
            return ChatChoiceWithIds(
                index=sequence.index,
                message=message,
                logprobs=logprobs,
                finish_reason=sequence.finish_reason,
                stop_reason=sequence.stop_reason,
                token_ids=sequence.token_ids,
            )
        return ChatChoice(
            index=sequence.index,
            message=message,
            logprobs=logprobs,
            finish_reason=sequence.finish_reason,
            stop_reason=sequence.stop_reason,
        )

    def _open_choice(self, index: int) -> bytes:
        delta = encode({"role": ROLE, "content": self._echo})
        return b'{"index":%d,"delta":%s,"logprobs":null,"finish_reason":null}' % (index, delta)

    def _prompt_ids(self, output: RequestOutput) -> bytes:
        if not self._request.return_token_ids:
            return b""
        return b',"prompt_token_ids":' + encode(output.prompt_token_ids)

    def _write_choice(self, sequence: CompletionOutput) -> bytes | None:
        """Return the choice of the next chunk; None where there is nothing to tell yet."""
        wants_ids = self._request.return_token_ids
        if not (sequence.text or sequence.finish_reason or sequence.logprobs or wants_ids):
            return None
        parts = [b'{"index":%d,"delta":' % sequence.index]
        is_empty = sequence.finish_reason is not None and not sequence.text
        parts.append(b"{}" if is_empty else b'{"content":' + encode(sequence.text) + b"}")
        parts.append(b',"logprobs":')
        if sequence.logprobs is None:
            parts.append(b"null")
        else:
            parts.append(encode(ChatLogprobs(build_chat_logprobs(sequence, self._num_top, self._style))))
        if sequence.finish_reason is None:
            parts.append(b',"finish_reason":null')
        else:
            parts.append(b',"finish_reason":' + encode(sequence.finish_reason))
            parts.append(b',"stop_reason":' + encode(sequence.stop_reason))
        if wants_ids:
            parts.append(b',"token_ids":' + encode(sequence.token_ids))
        parts.append(b"}")
        return b"".join(parts)


def _get_echo(request: ChatCompletionRequest) -> str:
    last = request.messages[-1]
    content = last.get("content")
    return content if request.echo and last.get("role") == ROLE and isinstance(content, str) else ""
