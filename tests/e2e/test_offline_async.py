"""`AsyncLLM` over a real core process: streams, cut-offs, and a core that is killed."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from engine import AsyncLLM, EngineDeadError, RequestOutput, RequestOutputKind, SamplingParams
from engine.config.compose import compose
from engine.entrypoints.prepare import architecture_of, prepare

PATIENCE_S = 60.0
PROMPTS = [f"Number {i} of the boats that wait for the tide " + "and so on " * (i % 5) for i in range(64)]


def params(max_tokens: int) -> SamplingParams:
    return SamplingParams(
        temperature=0, max_tokens=max_tokens, ignore_eos=True, output_kind=RequestOutputKind.DELTA
    )


@asynccontextmanager
async def running(folder: Path, *overrides: str) -> AsyncIterator[AsyncLLM]:
    base = [f"+model={folder}", "model.dtype=float32", "model.max_model_len=512"]
    composition = compose([*base, *overrides], architecture_of=architecture_of)
    llm = AsyncLLM(prepare(composition, entrypoint="async"))
    try:
        await llm.start()
        yield llm
    finally:
        await llm.shutdown()


def run(coroutine: Coroutine[object, object, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(2 * PATIENCE_S):
            await coroutine

    asyncio.run(bounded())


async def collect(stream: AsyncIterator[RequestOutput]) -> tuple[str, list[int], str | None]:
    text, token_ids, reason = "", [], None
    async for output in stream:
        [completion] = output.outputs
        text += completion.text
        token_ids += completion.token_ids
        reason = completion.finish_reason
    return text, token_ids, reason


async def until_idle(llm: AsyncLLM) -> None:
    """The core reports after every step; a short request makes it step."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            await collect(llm.generate([1, 2], params(1), "probe"))
            stats = llm.stats
            assert stats is not None
            if (stats.num_running, stats.num_waiting, stats.num_used_blocks) == (0, 0, 0):
                return


def test_64_streams_each_equal_their_lone_run_and_half_cut_off_leave_nothing(tiny_llama_dir: Path) -> None:
    async def main() -> None:
        async with running(tiny_llama_dir) as llm:
            lone = [await collect(llm.generate(prompt, params(24), "lone")) for prompt in PROMPTS]
            together = await asyncio.gather(
                *[collect(llm.generate(prompt, params(24), f"r{i}")) for i, prompt in enumerate(PROMPTS)]
            )
            assert together == lone
            assert all(reason == "length" for _, _, reason in together)

            async def cut_off(prompt: str, num_outputs: int) -> None:
                stream = llm.generate(prompt, params(400), "cut")
                for _ in range(num_outputs):
                    await anext(stream)
                await stream.aclose()  # type: ignore[attr-defined]

            cut = [cut_off(prompt, i % 4) for i, prompt in enumerate(PROMPTS[:32])]
            whole = [collect(llm.generate(prompt, params(24), "whole")) for prompt in PROMPTS[32:]]
            _, kept = await asyncio.gather(asyncio.gather(*cut), asyncio.gather(*whole))
            assert kept == lone[32:]
            assert (llm.num_running, llm.num_waiting) == (0, 0)
            await until_idle(llm)

    run(main())


def test_a_killed_core_ends_every_stream_with_an_error(tiny_llama_dir: Path) -> None:
    async def main() -> None:
        async with running(tiny_llama_dir) as llm:
            assert llm.info is not None
            started = asyncio.Event()

            async def read(i: int) -> None:
                async for _ in llm.generate(PROMPTS[i], params(400), f"r{i}"):
                    started.set()

            tasks = [asyncio.create_task(read(i)) for i in range(4)]
            await started.wait()
            os.kill(llm.info.pid, signal.SIGKILL)
            async with asyncio.timeout(5):
                results = await asyncio.gather(*tasks, return_exceptions=True)
                await llm.wait_dead()
            assert all(isinstance(result, EngineDeadError) for result in results)
            assert not llm.is_ready
            with pytest.raises(EngineDeadError):
                llm.check_health()
            pid = llm.info.pid
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)

    run(main())
