"""What must not change a greedy text: how work was cut, cached, batched, preempted or carried (float32)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from engine import LLM, RequestOutput, SamplingParams

GREEDY = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
SHARED = "A bridge of stone crosses the river; under it, boats wait for the tide. "
PROMPTS = [SHARED * (1 + i % 3) + f"Number {i}: " + "go on " * (i % 7) for i in range(64)]

VARIANTS: dict[str, list[str]] = {
    "prompts in chunks": ["scheduler.max_num_batched_tokens=32", "scheduler.max_num_seqs=8"],
    "chunks of odd size": [
        "scheduler.max_num_batched_tokens=64",
        "scheduler.long_prefill_token_threshold=7",
        "scheduler.max_num_seqs=16",
    ],
    "prompts whole": ["scheduler.enable_chunked_prefill=false"],
    "no prefix cache": ["cache.enable_prefix_caching=false"],
    "one at a time": ["scheduler.max_num_seqs=1"],
    "64 at once": ["scheduler.max_num_seqs=64"],
    "small blocks": ["cache.block_size=8"],
    "a core process": ["transport=ipc"],
}


def open_llm(folder: Path, *overrides: str) -> LLM:
    base = ["model.dtype=float32", "model.max_model_len=256"]
    return LLM(str(folder), overrides=[*base, *overrides], progress=False)


def ids_of(outputs: list[RequestOutput]) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in outputs]


@pytest.fixture(scope="module")
def expected(tiny_llama_dir: Path) -> list[list[int]]:
    """Each prompt by itself, computed whole, nothing cached."""
    plain = ["scheduler.max_num_seqs=1", "cache.enable_prefix_caching=false"]
    with open_llm(tiny_llama_dir, *plain, "scheduler.enable_chunked_prefill=false") as llm:
        return [ids_of(llm.generate(prompt, GREEDY, progress=False))[0] for prompt in PROMPTS]


@pytest.mark.parametrize("name", VARIANTS)
def test_greedy_tokens_are_the_same_with(name: str, tiny_llama_dir: Path, expected: list[list[int]]) -> None:
    with open_llm(tiny_llama_dir, *VARIANTS[name]) as llm:
        assert ids_of(llm.generate(PROMPTS, GREEDY, progress=False)) == expected
        check_idle(llm)


def test_greedy_tokens_are_the_same_from_the_prefix_cache(
    tiny_llama_dir: Path, expected: list[list[int]]
) -> None:
    # Blocks shorter than every prompt, whatever the platform's own choice is.
    with open_llm(tiny_llama_dir, "cache.block_size=4") as llm:
        llm.generate(PROMPTS, GREEDY, progress=False)
        again = llm.generate(PROMPTS, GREEDY, progress=False)
        assert ids_of(again) == expected
        assert all(output.num_cached_tokens > 0 for output in again)
        # At least one token of a prompt is computed: something must give the first logits.
        assert all(output.num_cached_tokens < len(output.prompt_token_ids) for output in again)
        llm.reset_prefix_cache()
        fresh = llm.generate(PROMPTS[:1], GREEDY, progress=False)
        assert fresh[0].num_cached_tokens == 0
        check_idle(llm)


@pytest.mark.parametrize("caching", ["true", "false"])
def test_greedy_tokens_are_the_same_through_preemptions(
    caching: str, tiny_llama_dir: Path, expected: list[list[int]]
) -> None:
    # 16 blocks beside the null block hold one longest sequence, so several at once push each other out.
    tight = ["cache.block_size=16", "cache.num_blocks=17", f"cache.enable_prefix_caching={caching}"]
    with open_llm(tiny_llama_dir, *tight) as llm:
        outputs = llm.generate(PROMPTS, GREEDY, progress=False)
        assert ids_of(outputs) == expected
        preemptions = [output.metrics.num_preemptions for output in outputs if output.metrics is not None]
        assert sum(preemptions) > 0
        check_idle(llm)


def test_a_seeded_sample_depends_on_nothing_but_its_seed(tiny_llama_dir: Path) -> None:
    params = [
        SamplingParams(temperature=1.3, top_k=40, top_p=0.95, seed=100 + i, max_tokens=24, ignore_eos=True)
        for i in range(32)
    ]
    prompts = PROMPTS[:32]
    with open_llm(tiny_llama_dir) as llm:
        together = ids_of(llm.generate(prompts, params, progress=False))
        alone = [
            ids_of(llm.generate(prompt, p, progress=False))[0]
            for prompt, p in zip(prompts, params, strict=True)
        ]
    tight = ["cache.num_blocks=17", "cache.block_size=16", "scheduler.max_num_batched_tokens=48"]
    with open_llm(tiny_llama_dir, *tight, "scheduler.max_num_seqs=32") as llm:
        preempted = ids_of(llm.generate(prompts, params, progress=False))
    assert alone == together == preempted
    assert len({tuple(ids) for ids in together}) > 16


def test_n_completions_equal_n_requests_of_their_seeds(tiny_llama_dir: Path) -> None:
    def params(n: int, seed: int) -> SamplingParams:
        return SamplingParams(n=n, seed=seed, temperature=1.0, max_tokens=12, ignore_eos=True)

    with open_llm(tiny_llama_dir) as llm:
        [together] = llm.generate(PROMPTS[0], params(4, 7), progress=False)
        lone = llm.generate([PROMPTS[0]] * 4, [params(1, 7 + i) for i in range(4)], progress=False)
    assert [completion.token_ids for completion in together.outputs] == ids_of(lone)


def test_a_stop_string_cuts_the_same_text(tiny_llama_dir: Path) -> None:
    with open_llm(tiny_llama_dir) as llm:
        whole = [o.outputs[0].text for o in llm.generate(PROMPTS[:8], GREEDY, progress=False)]
        stops = [text[len(text) // 2 : len(text) // 2 + 3] for text in whole]
        params = [SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, stop=[s]) for s in stops]
        cut = llm.generate(PROMPTS[:8], params, progress=False)
        for text, stop, output in zip(whole, stops, cut, strict=True):
            assert output.outputs[0].text == text[: text.index(stop)]
            assert output.outputs[0].stop_reason == stop
        check_idle(llm)


def test_text_goes_with_ids_and_ids_work_without_text(tiny_llama_dir: Path) -> None:
    params: Callable[[bool], SamplingParams] = lambda wants_text: SamplingParams(  # noqa: E731
        temperature=0, max_tokens=8, ignore_eos=True, detokenize=wants_text
    )
    with open_llm(tiny_llama_dir) as llm:
        prompt = {"prompt_token_ids": [1, 2, 3]}
        [with_text] = llm.generate([prompt], [params(True)], progress=False)
        [without] = llm.generate([prompt], [params(False)], progress=False)
    assert with_text.outputs[0].text
    assert without.outputs[0].text == ""
    assert with_text.outputs[0].token_ids == without.outputs[0].token_ids


def check_idle(llm: LLM) -> None:
    """Nothing runs, nothing waits, no block has an owner."""
    llm.generate([1, 2, 3], SamplingParams(temperature=0, max_tokens=1), progress=False)
    assert llm.stats is not None
    assert (llm.stats.num_running, llm.stats.num_waiting, llm.stats.num_used_blocks) == (0, 0, 0)
