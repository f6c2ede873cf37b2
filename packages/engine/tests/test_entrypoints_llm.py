"""`LLM` over a core that generates by rule: order, forms of input, clean ends."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
from engine.entrypoints.llm import LLM
from engine.types.errors import EngineDeadError, InvalidRequestError
from engine.types.sampling_params import RequestOutputKind, SamplingParams
from frontend_fakes import BOS, ByteTokenizer, FakeClient, FakeCore, expected_text, make_config

TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}>{% endif %}"
)


@pytest.fixture
def core() -> FakeCore:
    return FakeCore(max_num_seqs=3)


@pytest.fixture
def llm(core: FakeCore) -> Iterator[LLM]:
    with open_llm(core) as llm:
        yield llm


def open_llm(core: FakeCore, **config: object) -> LLM:
    tokenizer = ByteTokenizer(adds_bos=False)
    tokenizer.chat_template = TEMPLATE
    return LLM.from_config(
        make_config(**config),  # type: ignore[arg-type]
        client=FakeClient(core),  # type: ignore[arg-type]
        tokenizer=tokenizer,  # type: ignore[arg-type]
        progress=False,
    )


def test_outputs_keep_the_order_of_many_prompts_of_many_lengths(llm: LLM) -> None:
    prompts = [f"prompt {i}" for i in range(20)]
    params = [SamplingParams(max_tokens=1 + i * 7 % 11) for i in range(20)]
    outputs = llm.generate(prompts, params, progress=False)
    assert [o.prompt for o in outputs] == prompts
    assert [o.outputs[0].text for o in outputs] == [
        expected_text(prompt, p.max_tokens or 0) for prompt, p in zip(prompts, params, strict=True)
    ]
    assert all(o.is_finished and o.outputs[0].finish_reason == "length" for o in outputs)


def test_every_form_of_one_prompt_and_of_many(llm: LLM) -> None:
    params = SamplingParams(max_tokens=4)
    ids = list(b"Hi")
    text = expected_text("Hi", 4)
    for one in ("Hi", ids, {"prompt": "Hi"}, {"prompt_token_ids": ids}):
        [output] = llm.generate(one, params, progress=False)
        assert output.outputs[0].text == text
    many = llm.generate(["Hi", ids, {"prompt_token_ids": ids}], params, progress=False)
    assert [o.outputs[0].text for o in many] == [text] * 3
    assert llm.generate([], params, progress=False) == []


def test_only_whole_outputs_come_whatever_kind_is_asked_for(llm: LLM) -> None:
    params = SamplingParams(max_tokens=5, output_kind=RequestOutputKind.DELTA, stop=["zzz"])
    [output] = llm.generate("Hi", params, progress=False)
    assert output.outputs[0].text == expected_text("Hi", 5)


def test_n_completions_come_in_one_output(llm: LLM) -> None:
    [output] = llm.generate("Hi", SamplingParams(n=4, seed=2, max_tokens=5), progress=False)
    assert [c.text for c in output.outputs] == [expected_text("Hi", 5, 2 + i) for i in range(4)]


def test_a_max_tokens_beyond_the_context_is_lowered(llm: LLM) -> None:
    [output] = llm.generate([7] * 250, SamplingParams(max_tokens=1000), progress=False)
    assert len(output.outputs[0].token_ids) == 6


def test_a_bad_prompt_is_named_and_nothing_runs(llm: LLM, core: FakeCore) -> None:
    with pytest.raises(InvalidRequestError, match=r"prompts\[1\]") as caught:
        llm.generate(["ok", [1, 100_000]], progress=False)
    assert caught.value.param == "prompt"
    assert core.is_idle
    assert llm.generate("ok", SamplingParams(max_tokens=2), progress=False)[0].is_finished


def test_parameters_are_for_all_or_one_each(llm: LLM) -> None:
    with pytest.raises(InvalidRequestError, match="2 prompts"):
        llm.generate(["a", "b"], [SamplingParams()], progress=False)


@pytest.mark.parametrize("value", [None, 5, 1.5, b"text"])
def test_what_is_no_prompt_no_conversation_or_no_parameters_is_named(llm: LLM, value: object) -> None:
    with pytest.raises(InvalidRequestError, match="prompts=") as raised:
        llm.generate(value)  # type: ignore[arg-type]
    assert raised.value.param == "prompts"
    with pytest.raises(InvalidRequestError, match="messages="):
        llm.chat(value)  # type: ignore[arg-type]
    if value is not None:
        with pytest.raises(InvalidRequestError, match="sampling_params="):
            llm.generate("a", value)  # type: ignore[arg-type]


def test_the_checkpoints_defaults_serve_where_none_are_given() -> None:
    llm = open_llm(FakeCore(), generation_config={"temperature": 0.5, "top_k": 7})
    assert llm.get_default_sampling_params() == SamplingParams(temperature=0.5, top_k=7)
    assert len(llm.generate("a", progress=False)[0].outputs[0].token_ids) == 16


def test_chat_renders_one_conversation_or_many(llm: LLM) -> None:
    params = SamplingParams(max_tokens=3)
    hello = [{"role": "user", "content": "Hello"}]
    [one] = llm.chat(hello, params, progress=False)
    assert one.prompt == "[user]Hello>"
    many = llm.chat([hello, [{"role": "user", "content": "Bye"}]], params, progress=False)
    assert [o.prompt for o in many] == ["[user]Hello>", "[user]Bye>"]
    [own] = llm.chat(
        hello,
        params,
        progress=False,
        chat_template="{{ messages[0].content }}{{ mood }}",
        chat_template_kwargs={"mood": "!"},
    )
    assert own.prompt == "Hello!"


def test_a_chat_prompt_gets_no_second_opening_token() -> None:
    tokenizer = ByteTokenizer(adds_bos=True)
    tokenizer.chat_template = "{{ bos_token }}{{ messages[0].content }}"
    llm = LLM.from_config(make_config(), client=FakeClient(FakeCore()), tokenizer=tokenizer, progress=False)  # type: ignore[arg-type]
    params = SamplingParams(max_tokens=1)
    [output] = llm.chat([{"role": "user", "content": "x"}], params, progress=False)
    assert BOS not in output.prompt_token_ids
    assert BOS in llm.generate("x", params, progress=False)[0].prompt_token_ids


def test_a_model_without_a_template_says_so() -> None:
    llm = LLM.from_config(
        make_config(),
        client=FakeClient(FakeCore()),  # type: ignore[arg-type]
        tokenizer=ByteTokenizer(),  # type: ignore[arg-type]
        progress=False,
    )
    with pytest.raises(InvalidRequestError, match="chat template"):
        llm.chat([{"role": "user", "content": "x"}], progress=False)


def test_an_interrupt_leaves_an_idle_engine_that_serves_on() -> None:
    core = FakeCore()
    client = FakeClient(core)
    llm = LLM.from_config(make_config(), client=client, tokenizer=ByteTokenizer(), progress=False)  # type: ignore[arg-type]
    client.interrupt_after = 3
    with pytest.raises(KeyboardInterrupt):
        llm.generate(["a", "b"] * 5, SamplingParams(max_tokens=50), progress=False)
    assert core.is_idle
    [output] = llm.generate("a", SamplingParams(max_tokens=4), progress=False)
    assert output.outputs[0].text == expected_text("a", 4)


def test_ctrl_c_waits_for_the_end_of_the_step() -> None:
    core = FakeCore()
    steps_done: list[int] = []

    class Interrupted(FakeClient):
        def get_outputs(self, timeout_s: float | None = None):  # type: ignore[no-untyped-def]
            signal.raise_signal(signal.SIGINT)
            outputs = super().get_outputs(timeout_s)
            steps_done.append(1)
            return outputs

    llm = LLM.from_config(
        make_config(),
        client=Interrupted(core),  # type: ignore[arg-type]
        tokenizer=ByteTokenizer(),  # type: ignore[arg-type]
        progress=False,
    )
    with pytest.raises(KeyboardInterrupt):
        llm.generate("a", SamplingParams(max_tokens=50), progress=False)
    assert steps_done == [1]
    assert core.is_idle
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_closing_ends_the_engine_once() -> None:
    client = FakeClient(FakeCore())
    llm = LLM.from_config(make_config(), client=client, tokenizer=ByteTokenizer(), progress=False)  # type: ignore[arg-type]
    with llm:
        llm.reset_prefix_cache()
    assert client.is_shut_down
    llm.close()
    with pytest.raises(EngineDeadError, match="closed"):
        llm.generate("a", progress=False)
