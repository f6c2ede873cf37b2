"""The default model behind the real server, driven by OpenAI's own client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import openai
import pytest
from server_process import PATIENCE_S, ServerProcess, run_server

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
PROMPTS = [f"Here are {i + 2} facts about the number {i}:" for i in range(64)]
MODEL = "smollm2"


@pytest.fixture(scope="module")
def server(smollm2_path: Path) -> Iterator[ServerProcess]:
    overrides = ("+model=smollm2", "model.dtype=float32", "model.max_model_len=1024")
    with run_server(*overrides) as process:
        yield process
        process.wait_idle()
        process.send_signal()
        assert process.wait()[0] == 0, process.log


@pytest.fixture
def client(server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=f"{server.url}/v1", api_key="none", timeout=PATIENCE_S, max_retries=0
    ) as opened:
        yield opened


@asynccontextmanager
async def open_client(server: ServerProcess) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(
        base_url=f"{server.url}/v1", api_key="none", timeout=PATIENCE_S, max_retries=0
    ) as opened:
        yield opened


async def read_text(client: openai.AsyncOpenAI, prompt: str, max_tokens: int = 16) -> str:
    stream = await client.completions.create(
        model=MODEL, prompt=prompt, max_tokens=max_tokens, temperature=0, stream=True
    )
    return "".join([chunk.choices[0].text async for chunk in stream])


def test_capital_of_france_is_paris(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=QUESTION, temperature=0, max_tokens=32)  # type: ignore[call-overload]
    assert "Paris" in answer.choices[0].message.content
    assert answer.choices[0].finish_reason in ("stop", "length")
    assert answer.usage.prompt_tokens > 5


def test_stream_equals_whole(client: openai.OpenAI) -> None:
    fields = {"model": MODEL, "messages": QUESTION, "temperature": 0, "max_tokens": 48}
    whole = client.chat.completions.create(**fields, logprobs=True, top_logprobs=3)  # type: ignore[call-overload]
    chunks = list(
        client.chat.completions.create(**fields, stream=True, stream_options={"include_usage": True})  # type: ignore[call-overload]
    )
    choices = [chunk.choices[0] for chunk in chunks if chunk.choices]
    assert "".join(choice.delta.content or "" for choice in choices) == whole.choices[0].message.content
    assert [choice.finish_reason for choice in choices if choice.finish_reason] == [
        whole.choices[0].finish_reason
    ]
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    entries = whole.choices[0].logprobs.content
    assert len(entries) == whole.usage.completion_tokens
    joined = bytes(byte for entry in entries for byte in entry.bytes)
    assert joined.decode() == whole.choices[0].message.content


def test_a_seed_gives_the_same_answer_again(client: openai.OpenAI) -> None:
    fields = {"model": MODEL, "messages": QUESTION, "temperature": 1.0, "seed": 7, "max_tokens": 16, "n": 3}
    first, second = (client.chat.completions.create(**fields) for _ in range(2))  # type: ignore[call-overload]
    texts = [[choice.message.content for choice in answer.choices] for answer in (first, second)]
    assert texts[0] == texts[1]
    assert len(set(texts[0])) > 1


def test_echo_scores_the_prompt(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model=MODEL, prompt="Hello world", max_tokens=3, echo=True, logprobs=2, temperature=0
    )
    [choice] = answer.choices
    assert choice.text.startswith("Hello world")
    assert choice.logprobs is not None
    assert choice.logprobs.tokens is not None
    assert "".join(choice.logprobs.tokens) == choice.text
    assert choice.logprobs.token_logprobs is not None
    assert choice.logprobs.token_logprobs[0] is None
    assert all(value is not None and value <= 0 for value in choice.logprobs.token_logprobs[1:])


def test_tokenize_counts_what_a_prompt_costs(server: ServerProcess) -> None:
    counted = server.client.post("/tokenize", json={"messages": QUESTION}).json()
    answer = server.client.post("/v1/chat/completions", json={"messages": QUESTION, "max_tokens": 1}).json()
    assert counted["count"] == answer["usage"]["prompt_tokens"]
    text = server.client.post("/detokenize", json={"tokens": counted["tokens"]}).json()["prompt"]
    assert "What is the capital of France?" in text


def test_tokenizing_at_once_with_other_settings_mixes_nothing_up(server: ServerProcess) -> None:
    text = "One two three four five six seven eight nine ten. "

    async def run() -> None:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=server.url, timeout=PATIENCE_S, limits=limits) as client:
            counted = (await client.post("/tokenize", json={"prompt": text})).json()["tokens"]

            async def check(i: int) -> None:
                if i % 2:
                    answer = await client.post("/tokenize", json={"prompt": text})
                    assert answer.json()["tokens"] == counted
                    return
                keep = 1 + i % 9
                body = {
                    "prompt": text,
                    "max_tokens": 1,
                    "truncate_prompt_tokens": keep,
                    "return_token_ids": True,
                }
                answer = await client.post("/v1/completions", json=body)
                assert answer.json()["choices"][0]["prompt_token_ids"] == counted[-keep:]

            await asyncio.gather(*[check(i) for i in range(64)])

    asyncio.run(run())


def test_repeated_prompts_are_read_from_the_prefix_cache(server: ServerProcess) -> None:
    body = {"prompt": "A long enough prompt to fill some blocks of the cache. " * 8, "max_tokens": 1}
    for _ in range(2):
        usage = server.client.post("/v1/completions", json=body).json()["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] > 0
    salted = server.client.post("/v1/completions", json=body | {"cache_salt": "other"}).json()["usage"]
    assert salted["prompt_tokens_details"]["cached_tokens"] == 0


@pytest.fixture(scope="module")
def lone_texts(server: ServerProcess) -> list[str]:
    """What each prompt gives while nothing else runs."""

    async def run() -> list[str]:
        async with open_client(server) as client:
            return [await read_text(client, prompt) for prompt in PROMPTS]

    return asyncio.run(run())


def test_64_streams_each_equal_their_lone_run(server: ServerProcess, lone_texts: list[str]) -> None:
    async def run() -> None:
        async with open_client(server) as client:
            together = await asyncio.gather(*[read_text(client, prompt) for prompt in PROMPTS])
        assert together == lone_texts

    asyncio.run(run())
    server.wait_idle()


def test_half_of_64_streams_cut_off_leave_no_block_and_the_others_whole(
    server: ServerProcess, lone_texts: list[str]
) -> None:
    async def cut_off(client: openai.AsyncOpenAI, prompt: str, num_chunks: int) -> None:
        stream = await client.completions.create(
            model=MODEL, prompt=prompt, max_tokens=800, stream=True, extra_body={"ignore_eos": True}
        )
        async for _ in stream:
            num_chunks -= 1
            if num_chunks < 0:
                break
        await stream.close()

    async def run() -> None:
        async with open_client(server) as client:
            cut = [cut_off(client, prompt, i % 5) for i, prompt in enumerate(PROMPTS[::2])]
            whole = [read_text(client, prompt) for prompt in PROMPTS[1::2]]
            _, texts = await asyncio.gather(asyncio.gather(*cut), asyncio.gather(*whole))
        assert texts == lone_texts[1::2]

    asyncio.run(run())
    server.wait_idle()
    assert (
        server.client.post("/v1/completions", json={"prompt": "Still here?", "max_tokens": 2}).status_code
        == 200
    )


def test_health_stays_quick_while_a_long_prompt_is_read(server: ServerProcess) -> None:
    async def run() -> None:
        async with httpx.AsyncClient(base_url=server.url, timeout=PATIENCE_S) as client:
            body = {"prompt": "word " * 200_000, "max_tokens": 1}
            long = asyncio.create_task(client.post("/v1/completions", content=json.dumps(body)))
            slowest_s = 0.0
            while not long.done():
                slowest_s = max(slowest_s, (await client.get("/health")).elapsed.total_seconds())
            assert (await long).status_code == 400
            assert slowest_s < 1.0

    asyncio.run(run())
