"""The sequences of one HTTP request: one engine request per prompt, read as one stream.

Ends all of them when its reader goes or one of them fails. Knows outputs, not how they are written.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from engine.frontend.input_processor import Prompt
from engine.types.errors import RequestFailedError
from engine.types.outputs import RequestOutput
from engine.types.sampling_params import SamplingParams

from server.errors import CUT_OFF, unavailable
from server.state import Engine


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """What goes to the engine."""

    prompts: Sequence[Prompt]
    params: SamplingParams
    request_id: str
    priority: int = 0
    cache_salt: str | None = None
    add_special_tokens: bool = True


async def stream_outputs(engine: Engine, submission: Submission) -> AsyncGenerator[tuple[int, RequestOutput]]:
    """Yield outputs with the index of their prompt, in the order they come.

    Raises:
        RequestFailedError: a sequence ended with an error.
        ApiError: a sequence was cut off because the server stops.
        EngineError: as `AsyncLLM.generate`.
    """
    if len(submission.prompts) == 1:
        async with aclosing(_generate(engine, submission, 0)) as outputs:
            async for output in outputs:
                yield 0, output
        return
    queue: asyncio.Queue[tuple[int, RequestOutput] | Exception | None] = asyncio.Queue(
        len(submission.prompts)
    )
    pumps = [
        asyncio.ensure_future(_pump(engine, submission, index, queue))
        for index in range(len(submission.prompts))
    ]
    num_open = len(pumps)
    try:
        while num_open:
            item = await queue.get()
            if item is None:
                num_open -= 1
            elif isinstance(item, Exception):
                raise item
            else:
                yield item
    finally:
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)


async def collect_outputs(engine: Engine, submission: Submission) -> list[RequestOutput]:
    """Return the last output of each prompt, in the order of the prompts.

    Raises:
        as `stream_outputs`.
    """
    last: dict[int, RequestOutput] = {}
    async with aclosing(stream_outputs(engine, submission)) as outputs:
        async for index, output in outputs:
            last[index] = output
    return [last[index] for index in range(len(submission.prompts))]


async def _pump(
    engine: Engine,
    submission: Submission,
    index: int,
    queue: asyncio.Queue[tuple[int, RequestOutput] | Exception | None],
) -> None:
    """Put one prompt's outputs, then its end or what ended it; a full queue holds it back."""
    try:
        async with aclosing(_generate(engine, submission, index)) as outputs:
            async for output in outputs:
                await queue.put((index, output))
    except Exception as error:
        await queue.put(error)
    else:
        await queue.put(None)


async def _generate(engine: Engine, submission: Submission, index: int) -> AsyncGenerator[RequestOutput]:
    outputs = engine.generate(
        submission.prompts[index],
        submission.params,
        submission.request_id,
        priority=submission.priority,
        cache_salt=submission.cache_salt,
        add_special_tokens=submission.add_special_tokens,
    )
    async with aclosing(outputs):
        async for output in outputs:
            _check_ends(output)
            yield output


def _check_ends(output: RequestOutput) -> None:
    for sequence in output.outputs:
        if sequence.finish_reason == "error":
            raise RequestFailedError(sequence.error or "the request failed inside the engine.")
        if sequence.finish_reason == "abort":
            # Nobody else aborts: a client that goes closes this generator.
            raise unavailable(CUT_OFF)
