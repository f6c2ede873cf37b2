"""What answers hold, and that a stream says the same as the whole."""

from __future__ import annotations

from itertools import chain
from typing import Any

import openai
import pytest
from scripted_core import ASSISTANT, EOS, STOP_EARLY, USER, ByteTokenizer, expected_ids, expected_text
from server_harness import MODEL, RunningServer, run_server

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
HELLO = list(b"Hello")
SAY_HI = [USER, *b"Say hi", EOS, ASSISTANT]


def joined_text(events: list[Any], index: int = 0) -> str:
    """Text of one choice of a stream, of either kind."""
    text = ""
    for event in events[:-1]:
        for choice in event["choices"]:
            if choice["index"] == index:
                text += choice["text"] if "text" in choice else choice["delta"].get("content") or ""
    return text


def finish_reasons(events: list[Any]) -> list[tuple[int, str]]:
    return [
        (choice["index"], choice["finish_reason"])
        for event in events[:-1]
        for choice in event["choices"]
        if choice["finish_reason"]
    ]


def test_chat_answer_is_that_of_its_prompt(shared_server: RunningServer) -> None:
    body = shared_server.chat(max_tokens=20).json()
    assert body["object"] == "chat.completion"
    assert body["model"] == MODEL
    assert body["id"].startswith("chatcmpl-")
    [choice] = body["choices"]
    assert choice["message"] == {"role": "assistant", "content": expected_text(SAY_HI, 20), "refusal": None}
    assert (choice["index"], choice["finish_reason"], choice["logprobs"]) == (0, "length", None)
    assert body["usage"] == {
        "prompt_tokens": len(SAY_HI),
        "completion_tokens": 20,
        "total_tokens": len(SAY_HI) + 20,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


def test_end_of_sequence_is_no_text_and_finishes_with_stop(shared_server: RunningServer) -> None:
    body = shared_server.complete(prompt=STOP_EARLY, max_tokens=50).json()
    [choice] = body["choices"]
    assert choice["text"] == expected_text(list(STOP_EARLY.encode()), 3)
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", None)
    assert body["usage"]["completion_tokens"] == 4


def test_stop_string_ends_the_text_before_it(shared_server: RunningServer) -> None:
    whole = expected_text(HELLO, 40)
    stop = whole[10:12]
    [choice] = shared_server.complete(max_tokens=40, stop=stop).json()["choices"]
    assert choice["text"] == whole[: whole.index(stop)]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", stop)
    events = shared_server.stream(COMPLETIONS, max_tokens=40, stop=[stop])
    assert joined_text(events) == choice["text"]


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_stream_says_the_same_as_the_whole(shared_server: RunningServer, path: str) -> None:
    prompt_ids = SAY_HI if path == CHAT else HELLO
    events = shared_server.stream(path, max_tokens=33)
    assert events[-1] == "[DONE]"
    assert joined_text(events) == expected_text(prompt_ids, 33)
    assert finish_reasons(events) == [(0, "length")]
    assert len({event["id"] for event in events[:-1]}) == 1
    assert all("usage" not in event for event in events[:-1])
    assert all("\ufffd" not in str(event) for event in events)


def test_the_first_chat_delta_alone_names_the_role(shared_server: RunningServer) -> None:
    events = shared_server.stream(CHAT)
    deltas = [event["choices"][0]["delta"] for event in events[:-1]]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert all("role" not in delta for delta in deltas[1:])


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_usage_comes_last_and_alone(shared_server: RunningServer, path: str) -> None:
    events = shared_server.stream(path, stream_options={"include_usage": True})
    assert events[-2]["choices"] == []
    assert events[-2]["usage"]["completion_tokens"] == 8
    assert all(event["usage"] is None for event in events[:-2])


def test_continuous_usage_rises_to_the_final_count(shared_server: RunningServer) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = shared_server.stream(CHAT, stream_options=options)
    counts = [event["usage"]["completion_tokens"] for event in events[:-1]]
    assert counts == sorted(counts)
    assert counts[-1] == 8
    assert all(event["usage"]["prompt_tokens"] == len(SAY_HI) for event in events[:-1])


def test_forced_usage_ends_every_stream() -> None:
    with run_server(settings={"force_usage": True}) as server:
        assert server.stream(CHAT)[-2]["usage"]["completion_tokens"] == 8


def test_n_answers_are_those_of_their_seeds(shared_server: RunningServer) -> None:
    body = shared_server.chat(n=3, seed=5, temperature=1.0).json()
    texts = [choice["message"]["content"] for choice in body["choices"]]
    assert texts == [expected_text(SAY_HI, 8, seed) for seed in (5, 6, 7)]
    assert body["usage"]["prompt_tokens"] == len(SAY_HI)
    assert body["usage"]["completion_tokens"] == 24
    events = shared_server.stream(CHAT, n=3, seed=5, temperature=1.0)
    assert [joined_text(events, i) for i in range(3)] == texts
    assert sorted(finish_reasons(events)) == [(0, "length"), (1, "length"), (2, "length")]


def test_prompts_times_n_are_numbered_prompt_first(shared_server: RunningServer) -> None:
    fields: dict[str, Any] = {"prompt": ["a", "bc"], "n": 2, "seed": 1, "temperature": 1.0}
    body = shared_server.complete(**fields).json()
    expected = [expected_text(list(p), 4, seed) for p in (b"a", b"bc") for seed in (1, 2)]
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3]
    assert [choice["text"] for choice in body["choices"]] == expected
    assert body["usage"]["prompt_tokens"] == 3
    events = shared_server.stream(COMPLETIONS, max_tokens=4, **fields)
    assert [joined_text(events, i) for i in range(4)] == expected


@pytest.mark.parametrize("prompt", [HELLO, [HELLO], ["Hello"], "Hello"])
def test_prompts_as_text_and_as_ids_are_the_same(shared_server: RunningServer, prompt: Any) -> None:
    body = shared_server.complete(prompt=prompt).json()
    assert body["choices"][0]["text"] == expected_text(HELLO, 4)


@pytest.mark.parametrize("prompt", ["Hello", HELLO])
def test_echo_puts_the_prompt_first(shared_server: RunningServer, prompt: Any) -> None:
    body = shared_server.complete(prompt=prompt, echo=True).json()
    assert body["choices"][0]["text"] == "Hello" + expected_text(HELLO, 4)
    events = shared_server.stream(COMPLETIONS, prompt=prompt, echo=True, max_tokens=4)
    assert joined_text(events) == body["choices"][0]["text"]


def test_echo_without_answer_scores_the_prompt_alone(shared_server: RunningServer) -> None:
    body = shared_server.complete(echo=True, max_tokens=0, logprobs=1).json()
    [choice] = body["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("Hello", "length")
    assert choice["logprobs"]["tokens"] == list("Hello")
    assert choice["logprobs"]["token_logprobs"] == [None, -1.0, -1.0, -1.0, -1.0]
    assert body["usage"]["completion_tokens"] == 0


def test_echo_logprobs_cover_prompt_and_answer(shared_server: RunningServer) -> None:
    [choice] = shared_server.complete(max_tokens=3, echo=True, logprobs=2).json()["choices"]
    columns = choice["logprobs"]
    assert choice["text"].startswith("Hello")
    assert columns["tokens"] == [*"Hello", *expected_text(HELLO, 3)]
    assert columns["token_logprobs"][0] is None
    assert columns["top_logprobs"][0] is None
    assert columns["text_offset"] == list(range(8))
    for token, offset in zip(columns["tokens"], columns["text_offset"], strict=True):
        assert choice["text"][offset:].startswith(token)


def test_streamed_completion_logprobs_join_to_the_whole(shared_server: RunningServer) -> None:
    fields: dict[str, Any] = {"max_tokens": 12, "echo": True, "logprobs": 2}
    whole = shared_server.complete(**fields).json()["choices"][0]["logprobs"]
    events = shared_server.stream(COMPLETIONS, **fields)
    for column, values in whole.items():
        parts = [event["choices"][0]["logprobs"][column] for event in events[:-1]]
        assert list(chain.from_iterable(parts)) == values


def test_halves_of_a_character_have_names_of_their_own(shared_server: RunningServer) -> None:
    [choice] = shared_server.complete(max_tokens=6, logprobs=1).json()["choices"]
    ids = expected_ids(HELLO, 6)
    assert choice["logprobs"]["tokens"][3:5] == [f"bytes:\\x{ids[3]:02x}", f"bytes:\\x{ids[4]:02x}"]
    assert choice["logprobs"]["text_offset"] == [0, 1, 2, 3, 3, 4]


@pytest.mark.parametrize("max_tokens", [3, 8, 11])
def test_chat_logprob_bytes_join_to_the_text(shared_server: RunningServer, max_tokens: int) -> None:
    body = shared_server.chat(max_tokens=max_tokens, logprobs=True, top_logprobs=2).json()
    [choice] = body["choices"]
    content = choice["logprobs"]["content"]
    assert len(content) == body["usage"]["completion_tokens"]
    joined = bytes(byte for entry in content for byte in entry["bytes"])
    assert joined.decode("utf-8", "replace") == choice["message"]["content"]
    for entry in content:
        values = [candidate["logprob"] for candidate in entry["top_logprobs"]]
        assert values == sorted(values, reverse=True)
        assert len(values) in (2, 3)
        assert entry["token"] in [candidate["token"] for candidate in entry["top_logprobs"]]


def test_the_token_that_ended_an_answer_adds_no_bytes(shared_server: RunningServer) -> None:
    messages = [{"role": "user", "content": STOP_EARLY}]
    [choice] = shared_server.chat(messages=messages, logprobs=True).json()["choices"]
    content = choice["logprobs"]["content"]
    assert content[-1]["token"] == "<|end|>"
    assert content[-1]["bytes"] == []
    assert bytes(b for entry in content for b in entry["bytes"]).decode() == choice["message"]["content"]


def test_streamed_chat_logprobs_are_the_whole_ones(shared_server: RunningServer) -> None:
    fields: dict[str, Any] = {"logprobs": True, "top_logprobs": 1}
    whole = shared_server.chat(**fields).json()["choices"][0]["logprobs"]["content"]
    events = shared_server.stream(CHAT, **fields)
    parts = [event["choices"][0]["logprobs"] for event in events[:-1]]
    assert list(chain.from_iterable(part["content"] for part in parts if part)) == whole


def test_token_ids_are_returned_where_asked_for(shared_server: RunningServer) -> None:
    body = shared_server.chat(return_token_ids=True).json()
    assert body["prompt_token_ids"] == SAY_HI
    assert body["choices"][0]["token_ids"] == expected_ids(SAY_HI, 8)
    choice = shared_server.complete(return_token_ids=True).json()["choices"][0]
    assert (choice["prompt_token_ids"], choice["token_ids"]) == (HELLO, expected_ids(HELLO, 4))
    for path, prompt_ids in ((CHAT, SAY_HI), (COMPLETIONS, HELLO)):
        events = shared_server.stream(path, return_token_ids=True)
        first = events[0] if path == CHAT else events[0]["choices"][0]
        assert first["prompt_token_ids"] == prompt_ids
        streamed = [event["choices"][0].get("token_ids", []) for event in events[:-1]]
        assert list(chain.from_iterable(streamed)) == expected_ids(prompt_ids, 8)


def test_tokens_are_written_as_ids_where_asked_for(shared_server: RunningServer) -> None:
    ids = [f"token_id:{i}" for i in expected_ids(HELLO, 4)]
    fields: dict[str, Any] = {"logprobs": 0, "return_tokens_as_token_ids": True}
    assert shared_server.complete(**fields).json()["choices"][0]["logprobs"]["tokens"] == ids


def test_prompt_logprobs_have_an_entry_per_prompt_token(shared_server: RunningServer) -> None:
    entries = shared_server.chat(prompt_logprobs=1).json()["prompt_logprobs"]
    assert len(entries) == len(SAY_HI)
    assert entries[0] is None
    assert entries[1][str(SAY_HI[1])] == {"logprob": -1.0, "rank": 2, "decoded_token": "S"}
    choice = shared_server.complete(prompt_logprobs=1).json()["choices"][0]
    assert len(choice["prompt_logprobs"]) == len(HELLO)


def test_going_on_with_the_last_message_can_echo_it(shared_server: RunningServer) -> None:
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "Well,"}]
    fields = {"messages": messages, "continue_final_message": True, "add_generation_prompt": False}
    text = shared_server.chat(**fields).json()["choices"][0]["message"]["content"]
    assert text == expected_text([USER, *b"q", EOS, ASSISTANT, *b"Well,"], 8)
    echoed = shared_server.chat(**fields, echo=True).json()["choices"][0]["message"]["content"]
    assert echoed == "Well," + text
    assert joined_text(shared_server.stream(CHAT, **fields, echo=True)) == echoed


def test_template_arguments_reach_the_template(shared_server: RunningServer) -> None:
    body = shared_server.chat(chat_template_kwargs={"shout": "HEY"}).json()
    assert body["choices"][0]["message"]["content"] == expected_text([*SAY_HI, *b"HEY"], 8)


def test_a_request_that_fails_in_the_engine_ends_alone(shared_server: RunningServer) -> None:
    response = shared_server.complete(prompt="please fail")
    assert response.status_code == 500
    assert response.json()["error"]["message"] == "It failed on purpose."
    response = shared_server.post(COMPLETIONS, {"prompt": "please fail", "max_tokens": 4, "stream": True})
    assert response.status_code == 200
    assert "[DONE]" not in response.text
    assert '"error":{"message":"It failed on purpose."' in response.text
    assert shared_server.complete().status_code == 200


def test_several_prompts_of_which_one_fails_end_together(shared_server: RunningServer) -> None:
    response = shared_server.complete(prompt=["fine", "please fail", "fine too"], max_tokens=500)
    assert response.status_code == 500
    shared_server.wait_idle()


def test_priority_is_taken_where_the_policy_is_on() -> None:
    with run_server(policy="priority") as server:
        assert server.chat(priority=5).status_code == 200
        assert server.chat(priority=-5).status_code == 200
        assert server.chat(priority=2**70).json()["error"]["param"] == "priority"


def test_without_a_tokenizer_ids_go_in_and_out() -> None:
    with run_server(has_tokenizer=False) as server:
        choice = server.complete(prompt=HELLO, return_token_ids=True).json()["choices"][0]
        assert (choice["text"], choice["token_ids"]) == ("", expected_ids(HELLO, 4))
        assert server.complete(prompt="Hello").json()["error"]["param"] == "prompt"
        assert server.post("/tokenize", {"prompt": "a"}).status_code == 400


def test_tokenize_and_back(shared_server: RunningServer) -> None:
    body = shared_server.post("/tokenize", {"prompt": "h\u00e9", "return_token_strs": True}).json()
    ids = list("h\u00e9".encode())
    assert (body["tokens"], body["count"], body["max_model_len"]) == (ids, 3, 2048)
    assert body["token_strs"] == ["h", "\ufffd", "\ufffd"]
    assert shared_server.post("/detokenize", {"tokens": ids}).json() == {"prompt": "h\u00e9"}
    body = shared_server.post("/tokenize", {"messages": [{"role": "user", "content": "Say hi"}]}).json()
    assert body["tokens"] == SAY_HI
    assert body["token_strs"] is None
    text = shared_server.post("/detokenize", {"tokens": SAY_HI}).json()["prompt"]
    assert text == ByteTokenizer().decode(SAY_HI, skip_special_tokens=False)


def test_models_are_listed_under_their_served_names(shared_server: RunningServer) -> None:
    body = shared_server.client.get("/v1/models").json()
    assert [card["id"] for card in body["data"]] == [MODEL]
    assert body["data"][0]["max_model_len"] == 2048
    assert shared_server.client.get(f"/v1/models/{MODEL}").json() == body["data"][0]


def test_the_openai_client_reads_everything(shared_server: RunningServer) -> None:
    with openai.OpenAI(base_url=f"{shared_server.url}/v1", api_key="none", max_retries=0) as client:
        answer = client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "Say hi"}], max_tokens=8, logprobs=True
        )
        assert answer.choices[0].message.content == expected_text(SAY_HI, 8)
        assert answer.usage is not None
        assert answer.usage.prompt_tokens_details is not None
        with client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "Say hi"}],
            max_tokens=8,
            stream=True,
            stream_options={"include_usage": True},
        ) as stream:
            chunks = list(stream)
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        assert text == expected_text(SAY_HI, 8)
        assert chunks[-1].usage is not None
        completion = client.completions.create(model=MODEL, prompt="Hello", max_tokens=4, logprobs=1)
        assert completion.choices[0].text == expected_text(HELLO, 4)
        assert client.models.list().data[0].id == MODEL
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(model=MODEL, messages=[])
        assert caught.value.param == "messages"
        with pytest.raises(openai.NotFoundError):
            client.chat.completions.create(model="nope", messages=[{"role": "user", "content": "x"}])
