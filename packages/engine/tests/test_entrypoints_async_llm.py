"""`AsyncLLM` over a core that generates by rule: streams, aborts in every state, death, drain."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
from engine.entrypoints.async_llm import AsyncLLM
from engine.frontend.request_state import FinishedRequest
from engine.types.errors import (
    EngineDeadError,
    EngineDrainingError,
    InvalidRequestError,
    QueueFullError,
)
from engine.types.outputs import RequestOutput
from engine.types.sampling_params import RequestOutputKind, SamplingParams
from engine.types.wire import SchedulerStats
from frontend_fakes import ByteTokenizer, FakeAsyncClient, FakeCore, expected_text, make_config

DELTA = RequestOutputKind.DELTA
LONG = SamplingParams(max_tokens=200, output_kind=DELTA, ignore_eos=True)
PATIENCE_S = 20.0


class SlowTokenizer(ByteTokenizer):
    """Tokenizes when it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.may_run = threading.Event()
        self.may_run.set()

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        assert self.may_run.wait(PATIENCE_S)
        return super().encode(text, add_special_tokens=add_special_tokens)


class Recorder:
    """An observer that keeps what it hears."""

    def __init__(self) -> None:
        self.stats: list[SchedulerStats] = []
        self.records: list[FinishedRequest] = []

    def on_step(self, stats: SchedulerStats) -> None:
        self.stats.append(stats)

    def on_request_finished(self, record: FinishedRequest) -> None:
        self.records.append(record)


class Rig:
    def __init__(self, *, max_num_seqs: int = 4, max_waiting: int | None = None) -> None:
        self.core = FakeCore(max_num_seqs=max_num_seqs)
        self.client = FakeAsyncClient(self.core)
        self.tokenizer = SlowTokenizer()
        self.recorder = Recorder()
        self.llm = AsyncLLM(
            make_config(),
            max_waiting=max_waiting,
            client=self.client,  # type: ignore[arg-type]
            tokenizer=self.tokenizer,  # type: ignore[arg-type]
        )
        self.llm.add_observer(self.recorder)

    async def until(self, condition: Any) -> None:
        """Let the loop run until a condition holds; the bound only ends a broken test."""
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                await asyncio.sleep(0)

    async def fill_rows(self) -> list[asyncio.Task[list[RequestOutput]]]:
        """Have every row of the core taken, and the core held."""
        num_rows = self.core.info.max_num_seqs
        self.client.hold()
        tasks = [
            asyncio.create_task(collect(self.llm.generate([1], LONG, f"row {i}"))) for i in range(num_rows)
        ]
        await self.until(lambda: len(self.core.waiting) == num_rows)
        self.client.allow(1)
        await self.until(lambda: self.llm.num_running == num_rows)
        return tasks

    async def settle(self) -> None:
        """After every test: nothing open here, nothing running or waiting in the core."""
        await self.until(lambda: self.core.is_idle)
        assert (self.llm.num_waiting, self.llm.num_running) == (0, 0)


@asynccontextmanager
async def rig(**options: Any) -> AsyncIterator[Rig]:
    made = Rig(**options)
    await made.llm.start()
    try:
        yield made
    finally:
        made.tokenizer.may_run.set()
        await made.llm.shutdown()
        assert made.client.is_shut_down


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(2 * PATIENCE_S):
            await coroutine

    asyncio.run(bounded())


async def collect(stream: AsyncIterator[RequestOutput]) -> list[RequestOutput]:
    return [output async for output in stream]


def text_of(outputs: list[RequestOutput]) -> str:
    return "".join(output.outputs[0].text for output in outputs)


def test_many_streams_each_get_their_own_text() -> None:
    async def main() -> None:
        async with rig() as r:
            params = SamplingParams(max_tokens=30, output_kind=DELTA)
            streams = [r.llm.generate(f"prompt {i}", params, f"r{i}") for i in range(40)]
            outputs = await asyncio.gather(*map(collect, streams))
            for i, taken in enumerate(outputs):
                assert text_of(taken) == expected_text(f"prompt {i}", 30)
                assert {output.request_id for output in taken} == {f"r{i}"}
                assert [output.is_finished for output in taken] == [False] * (len(taken) - 1) + [True]
            await r.settle()
            assert len(r.recorder.records) == 40
            assert r.recorder.stats
            assert r.llm.stats == r.recorder.stats[-1]

    run(main())


def test_a_slow_reader_gets_merged_outputs_and_holds_nobody_up() -> None:
    async def main() -> None:
        async with rig() as r:
            params = SamplingParams(max_tokens=30, output_kind=DELTA)
            slow = r.llm.generate("slow", params, "slow")
            first = await anext(slow)
            fast = await collect(r.llm.generate("fast", params, "fast"))
            assert text_of(fast) == expected_text("fast", 30)
            rest = await collect(slow)
            assert len(rest) == 1
            assert text_of([first, *rest]) == expected_text("slow", 30)

    run(main())


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("state", ["tokenizing", "queued", "prefill", "decode"])
@pytest.mark.parametrize("how", ["cancel", "abort", "abort_all"])
def test_a_request_ends_at_once_in_every_state(state: str, how: str, n: int) -> None:
    async def main() -> None:
        async with rig(max_num_seqs=4) as r:
            await reach_state_and_end(r, state, how, n)
            await r.settle()
            ends = [record.finish_reason for record in r.recorder.records if record.request_id == "x"]
            assert ends == ["abort"]
            # The engine serves on.
            taken = await collect(r.llm.generate("next", SamplingParams(max_tokens=3), "next"))
            assert taken[-1].outputs[0].text == expected_text("next", 3)

    run(main())


async def reach_state_and_end(r: Rig, state: str, how: str, n: int) -> None:
    params = SamplingParams(max_tokens=200, n=n, seed=1, output_kind=DELTA)
    blockers = []
    if state == "tokenizing":
        r.tokenizer.may_run.clear()
    elif state == "queued":
        blockers = await r.fill_rows()
    elif state == "prefill":
        r.client.hold()
    stream = r.llm.generate("the prompt", params, "x")
    outputs: list[RequestOutput] = []

    async def read() -> None:
        async for output in stream:
            outputs.append(output)

    task = asyncio.create_task(read())
    if state == "tokenizing":
        await r.until(lambda: r.llm.num_waiting == n)
    elif state in ("queued", "prefill"):
        await r.until(lambda: len(r.core.waiting) == n)
    else:
        await r.until(lambda: len(outputs) >= 2)
    if how == "abort":
        r.llm.abort("x")
    elif how == "abort_all":
        r.llm.abort_all()
    else:
        task.cancel()
    r.tokenizer.may_run.set()
    if how in ("abort", "abort_all"):
        await task
        assert outputs[-1].is_finished
        assert outputs[-1].outputs[-1].finish_reason == "abort"
    else:
        with pytest.raises(asyncio.CancelledError):
            await task
    for blocker in blockers:
        blocker.cancel()
    await asyncio.gather(*blockers, return_exceptions=True)
    r.client.allow()


def test_closing_the_iterator_aborts() -> None:
    async def main() -> None:
        async with rig() as r:
            stream = r.llm.generate("x", LONG, "x")
            await anext(stream)
            await stream.aclose()  # type: ignore[attr-defined]
            assert r.llm.num_running == 0
            await r.settle()
            assert r.core.aborted == ["1"]

    run(main())


def test_random_closes_leave_nothing_behind() -> None:
    async def one(r: Rig, generator: random.Random, i: int) -> str:
        params = SamplingParams(n=generator.choice([1, 2]), seed=i, max_tokens=40, output_kind=DELTA)
        num_reads = generator.randrange(0, 2000)
        stream = r.llm.generate(f"p{i}", params, f"p{i}")
        task = asyncio.create_task(collect(stream))
        for _ in range(num_reads):
            await asyncio.sleep(0)
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            return "cancelled"
        return "finished"

    async def main() -> None:
        generator = random.Random(11)
        async with rig() as r:
            ends = await asyncio.gather(*[one(r, generator, i) for i in range(150)])
            await r.settle()
            assert set(ends) == {"cancelled", "finished"}
            # A task cancelled before its first turn never became a request; every other one ended once.
            assert sum(end == "finished" for end in ends) <= len(r.recorder.records) <= len(ends)
            assert await r.llm.drain(PATIENCE_S)

    run(main())


def test_two_requests_of_one_name_each_get_their_own() -> None:
    async def main() -> None:
        async with rig() as r:
            params = SamplingParams(max_tokens=20, output_kind=DELTA)
            first = r.llm.generate("a", params, "dup")
            second = asyncio.create_task(collect(r.llm.generate("b", params, "dup")))
            await anext(first)
            await first.aclose()  # type: ignore[attr-defined]
            assert text_of(await second) == expected_text("b", 20)

    run(main())


def test_the_queue_refuses_before_tokenizing() -> None:
    async def main() -> None:
        async with rig(max_num_seqs=1, max_waiting=2) as r:
            running = await r.fill_rows()
            num_encoded = r.tokenizer.num_encoded
            params = SamplingParams(max_tokens=2)
            tasks = [asyncio.create_task(collect(r.llm.generate("q", params, f"q{i}"))) for i in range(20)]
            await r.until(lambda: sum(task.done() for task in tasks) == 18)
            await r.until(lambda: len(r.core.waiting) == 2)
            assert r.tokenizer.num_encoded == num_encoded + 2
            assert r.llm.num_waiting == 2
            r.client.allow()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            refused = [result for result in results if isinstance(result, QueueFullError)]
            assert len(refused) == 18
            assert all(error.retry_after_s >= 1 for error in refused)
            assert sum(isinstance(result, list) for result in results) == 2
            await asyncio.gather(*running)
            await r.settle()

    run(main())


def test_free_rows_are_no_queue() -> None:
    async def main() -> None:
        async with rig(max_num_seqs=4, max_waiting=0) as r:
            params = SamplingParams(max_tokens=5)
            tasks = [collect(r.llm.generate("q", params, f"q{i}")) for i in range(6)]
            results = await asyncio.gather(*tasks, return_exceptions=True)
            assert [isinstance(result, QueueFullError) for result in results] == [False] * 4 + [True] * 2

    run(main())


def test_a_bad_request_is_refused_alone_and_not_counted() -> None:
    async def main() -> None:
        async with rig() as r:
            with pytest.raises(InvalidRequestError):
                await collect(r.llm.generate([10**6], SamplingParams(), "bad"))
            assert not r.recorder.records
            await r.settle()
            assert await r.llm.drain(PATIENCE_S)

    run(main())


def test_death_ends_every_stream_with_the_cause() -> None:
    async def main() -> None:
        async with rig(max_num_seqs=2) as r:
            tasks = await r.fill_rows()
            tasks += [asyncio.create_task(collect(r.llm.generate("p", LONG, f"p{i}"))) for i in range(3)]
            await r.until(lambda: len(r.core.waiting) == 3)
            r.tokenizer.may_run.clear()
            tasks.append(asyncio.create_task(collect(r.llm.generate("late", LONG, "late"))))
            await r.until(lambda: r.llm.num_waiting == 4)
            r.client.die("out of memory")
            error = await r.llm.wait_dead()
            assert "out of memory" in str(error)
            r.tokenizer.may_run.set()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(isinstance(result, EngineDeadError) for result in results)
            assert all("out of memory" in str(result) for result in results)
            assert not r.llm.is_ready
            with pytest.raises(EngineDeadError, match="out of memory"):
                r.llm.check_health()
            with pytest.raises(EngineDeadError):
                await collect(r.llm.generate("p", LONG, "after"))
            r.core.running.clear()
            r.core.waiting.clear()

    run(main())


def test_drain_lets_open_requests_end_and_takes_no_new_ones() -> None:
    async def main() -> None:
        async with rig() as r:
            params = SamplingParams(max_tokens=50, output_kind=DELTA)
            r.client.hold()
            tasks = [asyncio.create_task(collect(r.llm.generate("p", params, f"p{i}"))) for i in range(3)]
            await r.until(lambda: len(r.core.waiting) == 3)
            draining = asyncio.create_task(r.llm.drain(PATIENCE_S))
            await r.until(lambda: r.llm.is_draining)
            with pytest.raises(EngineDrainingError):
                await collect(r.llm.generate("p", params, "new"))
            r.client.allow()
            assert await draining
            for task in tasks:
                assert text_of(await task) == expected_text("p", 50)

    run(main())


def test_shutdown_ends_what_a_drain_left_open() -> None:
    async def main() -> None:
        async with rig() as r:
            r.client.hold()
            task = asyncio.create_task(collect(r.llm.generate("p", LONG, "p")))
            await r.until(lambda: r.core.waiting)
            assert not await r.llm.drain(0.01)
            await r.llm.shutdown()
            outputs = await task
            assert outputs[-1].outputs[0].finish_reason == "abort"
            assert r.llm.dead_error is None

    run(main())


def test_a_failed_start_says_why_and_shuts_down() -> None:
    async def main() -> None:
        r = Rig()
        r.client.start_error = EngineDeadError("no such device")
        with pytest.raises(EngineDeadError, match="no such device"):
            await r.llm.start()
        assert r.llm.dead_error is not None
        assert not r.llm.is_ready
        await r.llm.shutdown()
        assert r.client.is_shut_down

    run(main())


def test_an_observer_that_fails_ends_no_stream(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Recorder):
        def on_step(self, stats: SchedulerStats) -> None:
            raise RuntimeError("broken")

        def on_request_finished(self, record: FinishedRequest) -> None:
            raise RuntimeError("broken")

    async def main() -> None:
        async with rig() as r:
            r.llm.add_observer(Broken())
            taken = await collect(r.llm.generate("p", SamplingParams(max_tokens=4), "p"))
            assert taken[-1].outputs[0].text == expected_text("p", 4)

    run(main())
    assert "an observer failed" in caplog.text


def test_the_loop_turns_while_text_is_tokenized() -> None:
    async def main() -> None:
        async with rig() as r:
            r.tokenizer.may_run.clear()
            waiting = [asyncio.create_task(collect(r.llm.generate("p", LONG, f"p{i}"))) for i in range(8)]
            await r.until(lambda: r.llm.num_waiting == 8)
            # Ids need no tokenizer, but their turn in the pool; the loop itself is free.
            assert await r.llm.call("reset_prefix_cache") is True
            for task in waiting:
                task.cancel()
            r.tokenizer.may_run.set()
            await asyncio.gather(*waiting, return_exceptions=True)
            await r.settle()
            assert not r.core.seen_ids

    run(main())
