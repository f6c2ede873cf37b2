"""From the core's columns to what callers read."""

from __future__ import annotations

import random
import time

import pytest
from engine.frontend.output_processor import OutputProcessor
from engine.frontend.request_state import FinishedRequest, RequestState
from engine.types.outputs import CompletionOutput, RequestOutput
from engine.types.runner_output import TokenLogprobs
from engine.types.sampling_params import RequestOutputKind, SamplingParams
from engine.types.wire import (
    EngineCoreOutputs,
    FinishReason,
    SequenceFinished,
    SequenceLogprobs,
    SequencePromptLogprobs,
)
from frontend_fakes import EOS, FIRST_PIECE, ByteTokenizer, FakeCore, expected_text, make_inputs

DELTA, CUMULATIVE, FINAL = (
    RequestOutputKind.DELTA,
    RequestOutputKind.CUMULATIVE,
    RequestOutputKind.FINAL_ONLY,
)


class Rig:
    """An output processor, a fake core below it, and a log of who was told of what."""

    def __init__(self, pieces: list[bytes] | None = None, *, max_num_seqs: int = 4) -> None:
        self.records: list[FinishedRequest] = []
        self.tokenizer = ByteTokenizer(pieces or [])
        self.outputs = OutputProcessor(self.tokenizer, self.records.append)  # type: ignore[arg-type]
        self.inputs = make_inputs()
        self.core = FakeCore(max_num_seqs=max_num_seqs)
        self.num_added = 0

    def add(self, prompt: str, params: SamplingParams) -> RequestState:
        self.num_added += 1
        processed = self.inputs.process(prompt, params, internal_id=str(self.num_added), arrival_time_s=0.0)
        self.core.add(processed.requests)
        return self.outputs.add(f"request {self.num_added}", processed, time.monotonic())

    def step(self) -> None:
        self.core.abort(self.outputs.process(self.core.step()))

    def feed(self, *token_ids: int, finish: SequenceFinished | None = None) -> list[str]:
        """Give request 1 tokens by hand, in one step."""
        return self.outputs.process(
            EngineCoreOutputs(
                timestamp_s=time.monotonic(),
                request_ids=["1"] * len(token_ids),
                token_ids=list(token_ids),
                finished=[] if finish is None else [finish],
            )
        )


def read(rig: Rig, state: RequestState) -> list[RequestOutput]:
    """Step until the request is over, taking whatever is ready after each step."""
    taken = []
    for _ in range(1000):
        rig.step()
        if state.is_ready:
            taken.append(state.take())
        if state.is_finished:
            return taken
    raise AssertionError("the request never ended")


def text_of(outputs: list[RequestOutput]) -> str:
    return "".join(output.outputs[0].text for output in outputs)


def only(state: RequestState) -> CompletionOutput:
    [output] = state.take().outputs
    return output


@pytest.mark.parametrize("interval", [1, 3, 100])
def test_deltas_join_to_the_cumulative_text_and_to_the_final_one(interval: int) -> None:
    rig = Rig()
    states = [
        rig.add("same", SamplingParams(max_tokens=20, output_kind=kind, stream_interval=interval))
        for kind in (DELTA, CUMULATIVE, FINAL)
    ]
    taken: list[list[RequestOutput]] = [[], [], []]
    while not all(state.is_finished for state in states):
        rig.step()
        for state, into in zip(states, taken, strict=True):
            if state.is_ready:
                into.append(state.take())
    deltas, cumulative, final = taken
    text = expected_text("same", 20)
    assert text_of(deltas) == cumulative[-1].outputs[0].text == final[-1].outputs[0].text == text
    assert [i for output in deltas for i in output.outputs[0].token_ids] == final[0].outputs[0].token_ids
    lengths = [len(output.outputs[0].token_ids) for output in cumulative]
    assert lengths == {1: list(range(1, 21)), 3: [1, 4, 7, 10, 13, 16, 19, 20], 100: [1, 20]}[interval]
    assert len(deltas) == len(cumulative)
    assert len(final) == 1
    assert final[0].outputs[0].finish_reason == "length"
    assert [output.is_finished for output in deltas] == [False] * (len(deltas) - 1) + [True]


def test_a_slow_reader_gets_everything_in_one() -> None:
    rig = Rig()
    calls: list[int] = []
    state = rig.add("slow", SamplingParams(max_tokens=9, output_kind=DELTA))
    state.on_ready = lambda: calls.append(1)
    for _ in range(4):
        rig.step()
    assert only(state).text == expected_text("slow", 4)
    for _ in range(5):
        rig.step()
    output = state.take()
    assert output.is_finished
    assert output.outputs[0].text == expected_text("slow", 9)[4:]
    assert len(calls) == 2


@pytest.mark.parametrize("kind", [DELTA, CUMULATIVE, FINAL])
def test_a_stop_string_ends_the_text_before_it_and_the_request_in_the_core(kind: RequestOutputKind) -> None:
    text = expected_text("stop here", 30)
    stop = text[7:10]
    rig = Rig()
    state = rig.add("stop here", SamplingParams(max_tokens=30, stop=[stop], output_kind=kind))
    taken = read(rig, state)
    whole = text_of(taken) if kind is DELTA else taken[-1].outputs[0].text
    assert whole == text[: text.index(stop)]
    last = taken[-1].outputs[0]
    assert (last.finish_reason, last.stop_reason) == ("stop", stop)
    assert rig.core.aborted == ["1"]
    assert rig.core.is_idle
    rig.step()  # the core's own word on the abort finds nobody
    assert not rig.outputs.has_unfinished


def test_a_stop_over_tokens_streams_no_part_of_itself() -> None:
    pieces = [b"alpha ", b"be", b"ta ga", b"mma", b" delta"]
    rig = Rig(pieces)
    state = rig.add("p", SamplingParams(stop=["beta gamma"], output_kind=DELTA))
    texts = []
    for i in range(4):
        rig.feed(FIRST_PIECE + i)
        texts.append(only(state).text)
    assert texts == ["alpha ", "", "", ""]
    assert state.is_finished


def test_the_stop_string_stays_where_asked_for() -> None:
    rig = Rig([b"ab STOP cd"])
    state = rig.add("p", SamplingParams(stop=["STOP"], include_stop_str_in_output=True))
    assert rig.feed(FIRST_PIECE) == ["1"]
    assert only(state).text == "ab STOP"


def test_min_tokens_come_before_a_stop_string() -> None:
    rig = Rig()
    state = rig.add("p", SamplingParams(stop=["."], min_tokens=2, max_tokens=8))
    for _ in range(3):
        rig.feed(ord("."))
    output = only(state)
    assert (output.text, len(output.token_ids), output.stop_reason) == ("..", 3, ".")


def test_a_stop_string_outranks_the_length_in_the_same_token() -> None:
    rig = Rig([b"the end"])
    state = rig.add("p", SamplingParams(stop=["end"], max_tokens=1))
    to_abort = rig.feed(FIRST_PIECE, finish=SequenceFinished("1", FinishReason.LENGTH))
    output = only(state)
    assert (output.text, output.finish_reason, output.stop_reason) == ("the ", "stop", "end")
    assert to_abort == []


def test_tokens_past_a_stop_string_in_one_step_are_dropped() -> None:
    rig = Rig()
    state = rig.add("p", SamplingParams(stop=["b"], logprobs=0))
    rig.outputs.process(
        EngineCoreOutputs(
            timestamp_s=0.0,
            request_ids=["1"] * 3,
            token_ids=[97, 98, 99],
            logprobs=[SequenceLogprobs("1", TokenLogprobs([[97], [98], [99]], [[-1.0]] * 3, [1, 1, 1]))],
        )
    )
    output = only(state)
    assert (output.text, output.token_ids) == ("a", [97, 98])
    assert output.logprobs is not None
    assert len(output.logprobs) == 2


@pytest.mark.parametrize(("included", "text"), [(False, "a"), (True, "a.")])
def test_a_stop_token_is_an_id_of_the_output_and_text_only_where_asked_for(included: bool, text: str) -> None:
    rig = Rig()
    params = SamplingParams(stop_token_ids=[ord(".")], include_stop_str_in_output=included)
    state = rig.add("p", params)
    rig.feed(97)
    rig.feed(ord("."), finish=SequenceFinished("1", FinishReason.STOP, stop_reason=ord(".")))
    output = only(state)
    assert (output.text, output.token_ids, output.stop_reason) == (text, [97, ord(".")], ord("."))


def test_end_of_sequence_leaves_no_text_and_no_stop_reason() -> None:
    rig = Rig()
    state = rig.add("p", SamplingParams(skip_special_tokens=False))
    rig.feed(97)
    rig.feed(EOS, finish=SequenceFinished("1", FinishReason.STOP))
    output = only(state)
    assert (output.text, output.finish_reason, output.stop_reason) == ("a", "stop", None)


@pytest.mark.parametrize("reason", [FinishReason.LENGTH, FinishReason.ABORT, FinishReason.ERROR])
def test_what_was_held_back_comes_out_at_any_other_end(reason: FinishReason) -> None:
    rig = Rig([b"x ST", b"\xf0\x9f"])
    state = rig.add("p", SamplingParams(stop=["STOP"], output_kind=DELTA))
    rig.feed(FIRST_PIECE)
    first = only(state)
    rig.feed(FIRST_PIECE + 1, finish=SequenceFinished("1", reason, message="broken"))
    last = only(state)
    assert first.text == "x "
    assert last.text == "ST\ufffd"
    assert last.finish_reason == reason.text
    assert last.error == "broken"


def test_trouble_with_one_sequence_ends_it_alone(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    first = rig.add("a", SamplingParams(max_tokens=5))
    second = rig.add("b", SamplingParams(max_tokens=5, logprobs=0))
    third = rig.add("c", SamplingParams(max_tokens=5))
    to_abort = rig.outputs.process(
        EngineCoreOutputs(
            timestamp_s=0.0,
            request_ids=["1", "2", "3"],
            token_ids=[-5, 97, 98],
            logprobs=[SequenceLogprobs("2", TokenLogprobs([[97]], [], [1]))],
        )
    )
    assert sorted(to_abort) == ["1", "2"]
    assert "could not be processed" in caplog.text
    for state in (first, second):
        output = only(state)
        assert output.finish_reason == "error"
        assert output.error is not None
    assert only(third).text == "b"
    assert not third.is_finished


def test_unknown_and_ended_requests_are_passed_over() -> None:
    rig = Rig()
    state = rig.add("a", SamplingParams(max_tokens=5))
    rig.core.abort(rig.outputs.abort(state))
    assert only(state).finish_reason == "abort"
    rig.feed(97, finish=SequenceFinished("1", FinishReason.ABORT))
    rig.outputs.process(EngineCoreOutputs(timestamp_s=0.0, request_ids=["nobody"], token_ids=[1]))
    assert not state.is_ready


def test_n_completions_come_together_in_order_when_only_the_end_is_wanted() -> None:
    rig = Rig()
    state = rig.add("n", SamplingParams(n=3, seed=5, max_tokens=6, output_kind=FINAL))
    [output] = read(rig, state)
    assert [c.index for c in output.outputs] == [0, 1, 2]
    assert [c.text for c in output.outputs] == [expected_text("n", 6, 5 + i) for i in range(3)]
    assert output.is_finished


def test_n_streams_in_one_request_are_told_apart() -> None:
    rig = Rig(max_num_seqs=2)  # the third starts when another ends
    state = rig.add("n", SamplingParams(n=3, seed=5, max_tokens=4, output_kind=DELTA))
    texts = ["", "", ""]
    reasons: list[str | None] = [None, None, None]
    for output in read(rig, state):
        for completion in output.outputs:
            texts[completion.index] += completion.text
            assert reasons[completion.index] is None
            reasons[completion.index] = completion.finish_reason
    assert texts == [expected_text("n", 4, 5 + i) for i in range(3)]
    assert reasons == ["length"] * 3


def test_logprobs_carry_text_and_exact_bytes() -> None:
    rig = Rig([b"\xf0\x9f", b"\x8c\xb6"])
    state = rig.add("p", SamplingParams(logprobs=2, max_tokens=2))
    for i, rank in ((0, 1), (1, 3)):
        token_id = FIRST_PIECE + i
        values = TokenLogprobs([[token_id, 97, token_id if i == 0 else 98]], [[-0.5, -0.75, -1.0]], [rank])
        rig.outputs.process(
            EngineCoreOutputs(
                timestamp_s=0.0,
                request_ids=["1"],
                token_ids=[token_id],
                logprobs=[SequenceLogprobs("1", values)],
            )
        )
    output = only(state)
    assert output.text == "\U0001f336"
    assert output.logprobs is not None
    sampled = [p[token_id] for p, token_id in zip(output.logprobs, output.token_ids, strict=True)]
    assert [list(logprob.token_bytes or b"") for logprob in sampled] == [[240, 159], [140, 182]]
    assert [logprob.decoded_token for logprob in sampled] == ["\ufffd", "\ufffd\ufffd"]
    assert [logprob.rank for logprob in sampled] == [1, 3]
    assert list(output.logprobs[1]) == [FIRST_PIECE + 1, 97, 98]
    assert [logprob.rank for logprob in output.logprobs[1].values()] == [3, 1, 2]
    assert len(output.logprobs[0]) == 2  # the sampled token is one of the likely ones
    assert output.cumulative_logprob == pytest.approx(-1.0)


def test_logprobs_stream_with_their_tokens() -> None:
    rig = Rig()
    state = rig.add("p", SamplingParams(logprobs=1, max_tokens=5, output_kind=DELTA))
    for output in read(rig, state):
        [completion] = output.outputs
        assert completion.logprobs is not None
        assert [next(iter(p)) for p in completion.logprobs] == completion.token_ids


def test_prompt_logprobs_come_once_in_a_stream_with_the_prompt_in_pieces() -> None:
    rig = Rig()
    prompt = "p\u00e9"
    state = rig.add(prompt, SamplingParams(prompt_logprobs=1, max_tokens=3, output_kind=DELTA))
    first, *rest = read(rig, state)
    assert first.prompt_logprobs is not None
    assert first.prompt_logprobs[0] is None
    token_ids = list(prompt.encode())
    assert [next(iter(p)) for p in first.prompt_logprobs[1:] if p] == token_ids[1:]
    assert first.prompt_text_pieces == ["p", "", "\u00e9"]
    assert all(output.prompt_logprobs is None for output in rest)


def test_prompt_logprobs_computed_anew_after_a_preemption_count_once() -> None:
    rig = Rig()
    state = rig.add("abcde", SamplingParams(prompt_logprobs=0))
    ids = list(b"abcde")
    for start, end in ((1, 3), (1, 4), (4, 5)):
        stretch = TokenLogprobs([[i] for i in ids[start:end]], [[-1.0]] * (end - start), [1] * (end - start))
        record = SequencePromptLogprobs("1", start, stretch)
        rig.outputs.process(EngineCoreOutputs(timestamp_s=0.0, prompt_logprobs=[record]))
    rig.feed(97)
    logprobs = state.take().prompt_logprobs
    assert logprobs is not None
    assert [next(iter(p)) if p else None for p in logprobs] == [None, *ids[1:]]


def test_without_detokenizing_there_are_ids_and_no_text() -> None:
    rig = Rig()
    state = rig.add("p", SamplingParams(detokenize=False, max_tokens=3, logprobs=0))
    output = read(rig, state)[-1].outputs[0]
    assert output.text == ""
    assert len(output.token_ids) == 3
    assert output.logprobs is not None
    texts = [logprob.decoded_token for position in output.logprobs for logprob in position.values()]
    assert texts == [None] * 3


def test_times_and_counts_add_up_for_observers() -> None:
    rig = Rig()
    state = rig.add("abc", SamplingParams(n=2, seed=1, max_tokens=4))
    assert (rig.outputs.num_waiting, rig.outputs.num_running) == (2, 0)
    rig.step()
    assert (rig.outputs.num_waiting, rig.outputs.num_running) == (0, 2)
    read(rig, state)
    assert (rig.outputs.num_waiting, rig.outputs.num_running) == (0, 0)
    [record] = rig.records
    assert (record.num_prompt_tokens, record.num_output_tokens, record.finish_reason) == (3, 8, "length")
    assert len(record.inter_token_times_s) == 6
    times = record.metrics
    ordered = [
        times.arrival_time_s,
        times.first_scheduled_time_s,
        times.first_token_time_s,
        times.last_token_time_s,
        times.finished_time_s,
    ]
    assert None not in ordered
    assert ordered == sorted(ordered, key=lambda t: t or 0.0)


def test_aborts_at_random_moments_leave_nothing_behind() -> None:
    generator = random.Random(3)
    rig = Rig(max_num_seqs=3)
    open_states: list[RequestState] = []
    for _ in range(600):
        if generator.random() < 0.4:
            n = generator.choice([1, 1, 2])
            params = SamplingParams(n=n, seed=1, max_tokens=generator.randrange(1, 9), output_kind=DELTA)
            open_states.append(rig.add("x" * generator.randrange(1, 9), params))
        if open_states and generator.random() < 0.3:
            rig.core.abort(rig.outputs.abort(open_states.pop(generator.randrange(len(open_states)))))
        rig.step()
        open_states = [state for state in open_states if not state.is_finished]
    while not rig.core.is_idle:
        rig.step()
    assert not rig.outputs.has_unfinished
    assert (rig.outputs.num_waiting, rig.outputs.num_running) == (0, 0)
    assert len(rig.records) == rig.num_added


def test_a_token_of_a_stream_costs_little() -> None:
    rig = Rig([b" word"])
    num_streams, num_steps = 256, 40
    params = SamplingParams(max_tokens=100, output_kind=DELTA)
    states = [rig.add("p", params) for _ in range(num_streams)]
    request_ids = [str(i + 1) for i in range(num_streams)]
    best_s = 1e9
    for _ in range(num_steps):
        step = EngineCoreOutputs(
            timestamp_s=0.0, request_ids=request_ids, token_ids=[FIRST_PIECE] * num_streams
        )
        start_s = time.perf_counter()
        rig.outputs.process(step)
        outputs = [state.take() for state in states]
        best_s = min(best_s, time.perf_counter() - start_s)
        assert all(output.outputs[0].text == " word" for output in outputs)
    # 15 us a token is the budget on a quiet core; the bound leaves room for a busy one.
    assert best_s / num_streams < 45e-6
    print(f"{best_s / num_streams * 1e6:.1f} us per token and stream")
