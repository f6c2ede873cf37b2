"""Single rules of the scheduler: order, budget, stops, failures, and what requests are told."""

from __future__ import annotations

import msgspec
import pytest
from core_scripted import POISON, VOCAB_SIZE, next_token
from engine.types.runner_output import ModelRunnerOutput
from engine.types.wire import FinishReason
from scheduler_harness import MAX_MODEL_LEN, Harness


def first_tokens(prompt: list[int], count: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(next_token(tokens, 0))
    return tokens[len(prompt) :]


def test_prompt_in_chunks_shares_steps_with_decode() -> None:
    harness = Harness(budget=10, prefix_caching=False)
    harness.add("short", [3] * 4, eos=(), max_tokens=20)
    harness.step()
    harness.add("long", [4] * 30, eos=(), max_tokens=2)
    counts = [
        dict(zip(s.rows, s.num_scheduled_tokens, strict=True)) for s in (harness.step() for _ in range(4))
    ]
    assert counts == [{0: 1, 1: 9}, {0: 1, 1: 9}, {0: 1, 1: 9}, {0: 1, 1: 3}]
    assert len(harness.tokens["long"]) == 1
    harness.run()


def test_long_prefill_threshold_leaves_room_for_the_next_prompt() -> None:
    harness = Harness(budget=20, threshold=8, prefix_caching=False)
    harness.add("a", [3] * 30, max_tokens=1)
    harness.add("b", [4] * 30, max_tokens=1)
    assert harness.step().num_scheduled_tokens == [8, 8]
    harness.run()


def test_without_chunks_a_prompt_waits_until_it_fits_whole() -> None:
    harness = Harness(budget=10, chunked=False, prefix_caching=False)
    harness.add("a", [3] * 6, eos=(), max_tokens=3)
    harness.add("b", [4] * 9, max_tokens=1)
    harness.add("c", [5] * 2, max_tokens=1)
    assert harness.step().num_scheduled_tokens == [6]
    # b needs 9 of the 9 that a leaves; c does not overtake it.
    assert harness.step().num_scheduled_tokens == [1, 9]
    harness.run()
    harness.add("never", [3] * 11, max_tokens=1)
    harness.add("after", [3] * 2, max_tokens=1)
    harness.run()
    assert "a step has 10" in harness.ends["never"].message
    assert harness.ends["after"].reason is FinishReason.LENGTH


def test_priority_runs_first_and_is_preempted_last() -> None:
    harness = Harness(policy="priority", max_num_seqs=2, budget=64, num_blocks=9)
    for name, priority, arrival in (("low", 5, 0.0), ("mid", 1, 1.0), ("high", 0, 3.0), ("tie", 0, 2.0)):
        harness.add(
            name, [3] * 9 + [ord(name[0])], eos=(), max_tokens=20, priority=priority, arrival_time_s=arrival
        )
    started: list[str] = []
    while harness.scheduler.has_unfinished():
        harness.step()
        started += [name for name in harness.num_starts if name not in started]
    assert started == ["tie", "high", "mid", "low"]
    assert harness.num_preemptions > 0
    assert harness.ends["tie"].num_preemptions == 0
    assert list(harness.ends) == ["tie", "high", "mid", "low"]


def test_newcomer_of_higher_priority_stands_before_those_that_run() -> None:
    harness = Harness(policy="priority", max_num_seqs=3, budget=64, num_blocks=10)
    harness.add("low", [3] * 5, eos=(), max_tokens=25, priority=2)
    harness.step()
    harness.add("high", [4] * 5, eos=(), max_tokens=25, priority=1)
    harness.step()
    assert harness.scheduler._batch.request_ids == ["high", "low"]
    harness.run()
    assert harness.ends["high"].num_preemptions == 0
    assert harness.ends["low"].num_preemptions > 0


def test_request_larger_than_the_cache_ends_with_the_numbers() -> None:
    harness = Harness(num_blocks=4, budget=64)
    harness.add("prompt", [3] * 13, max_tokens=1)
    harness.add("output", [4] * 11, eos=(), max_tokens=5)
    harness.add("fits", [5] * 3, eos=(), max_tokens=2)
    harness.run()
    assert harness.ends["prompt"].message == (
        "the request needs room for 13 tokens, but the whole KV cache holds 12."
    )
    assert harness.ends["output"].reason is FinishReason.ERROR
    assert len(harness.tokens["output"]) == 2
    assert harness.ends["fits"].reason is FinishReason.LENGTH


def test_admission_leaves_a_reserve_while_others_run() -> None:
    harness = Harness(num_blocks=201, budget=2000)
    harness.add("runs", [3] * 60, max_tokens=4, eos=())
    harness.step()
    # 185 of 200 blocks are free; two are to stay so, and the next prompt takes 15.
    held = harness.kv.pool.allocate(169)
    harness.add("large", [4] * 60, max_tokens=1, eos=())
    assert harness.scheduler.schedule().new_rows == []
    harness.kv.pool.free(held)


def test_stop_ids_and_end_of_sequence_are_told_apart() -> None:
    tokens = first_tokens([3, 4], 6)
    harness = Harness()
    harness.add("eos", [3, 4], eos=(tokens[3],), max_tokens=6, stop_token_ids=[tokens[4]])
    harness.add("stop", [3, 4], eos=(tokens[4],), max_tokens=6, stop_token_ids=[tokens[3]])
    harness.add("many", [3, 4], eos=(), max_tokens=6, stop_token_ids=[*range(100, 130), tokens[2]])
    harness.add("last", [3, 4], eos=(tokens[3],), max_tokens=4)
    harness.run()
    assert harness.tokens["eos"] == harness.tokens["stop"] == harness.tokens["last"] == tokens[:4]
    assert (harness.ends["eos"].reason, harness.ends["eos"].stop_reason) == (FinishReason.STOP, None)
    assert (harness.ends["stop"].reason, harness.ends["stop"].stop_reason) == (FinishReason.STOP, tokens[3])
    assert harness.tokens["many"] == tokens[:3]
    assert harness.ends["many"].stop_reason == tokens[2]
    assert harness.ends["last"].reason is FinishReason.STOP


def test_stop_within_min_tokens_does_not_end_the_sequence() -> None:
    tokens = first_tokens([3, 4], 6)
    for min_tokens, expected in ((2, 3), (3, 6)):
        harness = Harness()
        harness.add("r", [3, 4], eos=(tokens[2],), max_tokens=6, min_tokens=min_tokens)
        schedule = harness.step()
        assert schedule.new_rows[0].stop_token_ids == [tokens[2]]
        harness.run()
        assert len(harness.tokens["r"]) == expected


def test_context_length_ends_the_sequence() -> None:
    harness = Harness(budget=64)
    harness.add("r", [3] * (MAX_MODEL_LEN - 2), eos=(), max_tokens=50)
    harness.run()
    assert harness.ends["r"].reason is FinishReason.LENGTH
    assert len(harness.tokens["r"]) == 2


def test_failed_row_ends_alone_and_leaves_nothing_in_the_prefix_cache() -> None:
    harness = Harness(budget=64)
    poisoned = [3] * 8 + [POISON] + [3] * 3
    harness.add("bad", poisoned, max_tokens=4)
    harness.add("good", [4] * 9, eos=(), max_tokens=4)
    harness.run()
    assert harness.ends["bad"].reason is FinishReason.ERROR
    assert harness.ends["bad"].message == "non-finite logits"
    assert harness.tokens["bad"] == []
    assert len(harness.tokens["good"]) == 4
    harness.add("again", [*poisoned[:8], 5], max_tokens=1)
    harness.run()
    assert harness.num_cached["again"] == 0


def test_row_aborted_in_flight_that_also_failed_is_not_reused() -> None:
    harness = Harness(budget=64)
    harness.add("bad", [3] * 8 + [POISON], max_tokens=4)
    harness.step(abort_in_flight=("bad",))
    assert harness.ends["bad"].reason is FinishReason.ABORT
    assert harness.kv.pool.num_cached == 0
    harness.check_idle()


@pytest.mark.parametrize("token_id", [-1, VOCAB_SIZE, 2**40])
def test_sampled_id_outside_the_vocabulary_ends_that_request_only(token_id: int) -> None:
    harness = Harness(budget=64)
    harness.add("bad", [3] * 5, eos=(), max_tokens=4)
    harness.add("good", [4] * 5, eos=(), max_tokens=4)

    def spoil(output: ModelRunnerOutput) -> ModelRunnerOutput:
        return msgspec.structs.replace(output, sampled_token_ids=[token_id, *output.sampled_token_ids[1:]])

    harness.step_with(spoil)
    harness.run()
    assert harness.ends["bad"].reason is FinishReason.ERROR
    assert harness.tokens["bad"] == []
    assert len(harness.tokens["good"]) == 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"step_id": 99}, "answered step 99"),
        ({"rows": [3, 1]}, r"sampled rows \[3\]"),
        ({"sampled_token_ids": [5]}, "1 token ids for 2 rows"),
    ],
)
def test_workers_that_answer_something_else_are_refused(change: dict[str, object], message: str) -> None:
    harness = Harness(budget=64)
    harness.add("a", [3] * 5)
    harness.add("b", [4] * 5)
    with pytest.raises(RuntimeError, match=message):
        harness.step_with(lambda output: msgspec.structs.replace(output, **change))


def test_prompt_logprobs_come_once_though_the_prompt_is_computed_twice() -> None:
    harness = Harness(budget=6, num_blocks=9, max_num_seqs=2)
    harness.add("old", [3] * 5, eos=(), max_tokens=26)
    for _ in range(8):
        harness.step()
    prompt = list(range(3, 3 + 16))
    harness.add("asks", prompt, eos=(), max_tokens=3, prompt_logprobs=1, logprobs=1)
    harness.run()
    assert harness.ends["asks"].num_preemptions > 0
    assert harness.num_cached["asks"] == 0
    positions = []
    for stretch in harness.prompt_logprobs["asks"]:
        assert [ids[0] for ids in stretch.logprobs.token_ids] == prompt[stretch.start :][
            : len(stretch.logprobs.ranks)
        ]
        positions += range(stretch.start, stretch.start + len(stretch.logprobs.ranks))
    assert positions == list(range(1, 16))
    assert harness.num_logprobs["asks"] == 3


def test_equal_prompts_of_one_step_are_computed_once() -> None:
    harness = Harness(budget=64)
    for index in range(4):
        harness.add(f"r{index}", [3] * 13, seed=index, max_tokens=3)
    schedule = harness.step()
    assert schedule.num_scheduled_tokens == [13, 1, 1, 1]
    assert harness.num_cached == {"r0": 0, "r1": 12, "r2": 12, "r3": 12}
    harness.run()
    for index in range(4):
        harness.check_tokens(f"r{index}")


def test_salts_keep_prefixes_apart() -> None:
    harness = Harness(budget=64)
    for name, salt in (("a", "x"), ("b", "y"), ("c", None), ("d", "x")):
        harness.add(name, [3] * 9, salt=salt, max_tokens=1)
        harness.run()
    assert harness.num_cached == {"a": 0, "b": 0, "c": 0, "d": 8}


def test_preempted_request_resumes_from_its_own_blocks() -> None:
    harness = Harness(budget=64, num_blocks=9, max_num_seqs=2)
    harness.add("old", [3] * 6, eos=(), max_tokens=14)
    harness.add("new", [4] * 6, eos=(), max_tokens=14)
    harness.run()
    resumed = [row for schedule in harness.schedules for row in schedule.new_rows if row.request_id == "new"]
    assert len(resumed) == 2
    assert len(resumed[1].token_ids) > resumed[1].num_prompt_tokens == 6
    assert resumed[1].num_computed_tokens > 0
    assert harness.num_starts["new"] == 1
    harness.check_tokens("new")


def test_abort_in_the_queue_and_reject_end_once() -> None:
    harness = Harness(max_num_seqs=1)
    harness.add("runs", [3] * 5, max_tokens=3, eos=())
    harness.add("waits", [4] * 5)
    harness.step()
    harness.scheduler.abort(["waits", "waits", "unknown"])
    harness.scheduler.reject("stranger", "no")
    assert harness.scheduler.num_waiting == 0
    harness.run()
    assert harness.ends["waits"].reason is FinishReason.ABORT
    assert harness.ends["stranger"].message == "no"
    assert len(harness.ends) == 3


def test_aborted_requests_do_not_pile_up_behind_one_that_waits() -> None:
    harness = Harness(max_num_seqs=1, policy="priority")
    harness.add("runs", [3] * 5, max_tokens=20, eos=())
    harness.step()
    harness.add("first", [3] * 5, max_tokens=1)
    for index in range(500):
        harness.add(f"r{index}", [4] * 5, priority=1)
        harness.scheduler.abort([f"r{index}"])
    assert len(harness.scheduler._waiting._heap) < 10
    assert [request.request_id for request in harness.scheduler._waiting.requests()] == ["first"]
    harness.run()


def test_request_whose_prefix_cannot_be_looked_up_ends_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = Harness()
    look_up = harness.kv.get_computed_blocks

    def fail_for_bad(request):  # type: ignore[no-untyped-def]
        if request.request_id == "bad":
            raise KeyError("broken")
        return look_up(request)

    monkeypatch.setattr(harness.kv, "get_computed_blocks", fail_for_bad)
    harness.add("bad", [3] * 5)
    harness.add("good", [4] * 5, max_tokens=2, eos=())
    harness.run()
    assert harness.ends["bad"].reason is FinishReason.ERROR
    assert harness.ends["good"].reason is FinishReason.LENGTH
