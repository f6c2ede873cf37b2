"""Greedy text and logprobs of `LLM` against transformers on the same checkpoint, in float32.

One forward of transformers over prompt and output judges every position at once: where the most likely next
token is the engine's at each of them, transformers' own greedy text is the same, token for token.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from engine import LLM, RequestOutput, SamplingParams
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

NUM_TOKENS = 48
PROMPTS = [
    "The capital of France is",
    "Once upon a time, in a village by the sea,",
    "def fibonacci(n):\n    ",
    "1, 2, 3, 4, 5,",
    "Q: What is the boiling point of water?\nA:",
    "import numpy as np\n\n",
    "Dear Sir or Madam,\n\nI am writing to",
    "The three laws of thermodynamics are:\n1.",
    "La capitale de l'Espagne est",
    "Der schnellste Weg nach Berlin",
    "\u6771\u4eac\u306f",
    "\u041f\u0440\u0438\u0432\u0435\u0442, \u043a\u0430\u043a",
    "Emoji are fun \U0001f600\U0001f680",
    "<html>\n  <head>\n",
    "SELECT name, COUNT(*) FROM",
    "In 1969, Neil Armstrong",
    "Photosynthesis is the process by which",
    "   leading spaces and\ttabs",
    "A",
    "To be, or not to be",
    '{"name": "John", "age": 30,',
    "Roses are red,\nViolets are blue,\n",
    "The quick brown fox jumps over the lazy dog. " * 12,
    "Water, fire, earth and" + " air, water, fire, earth and" * 40,
]


def check_against(llm: LLM, model: PreTrainedModel, prompts: list[str]) -> None:
    params = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True, logprobs=5)
    outputs = llm.generate(prompts, params, progress=False)
    worst = 0.0
    for output in outputs:
        assert len(output.outputs[0].token_ids) == NUM_TOKENS
        worst = max(worst, compare(output, model))
    assert worst < 1e-3, f"logprobs differ by {worst}"


def compare(output: RequestOutput, model: PreTrainedModel) -> float:
    """Check every token of an output; return the largest difference of a logprob."""
    [completion] = output.outputs
    assert completion.logprobs is not None
    prompt_len = len(output.prompt_token_ids)
    ids = torch.tensor([output.prompt_token_ids + completion.token_ids[:-1]])
    with torch.inference_mode():
        logits_TV = model(ids).logits[0, prompt_len - 1 :].float()
    expected = logits_TV.argmax(-1).tolist()
    assert completion.token_ids == expected, f"after {output.prompt!r}"
    logprobs_TV = logits_TV.log_softmax(-1)
    worst = 0.0
    for i, position in enumerate(completion.logprobs):
        sampled, *_ = position
        assert sampled == completion.token_ids[i]
        assert position[sampled].rank == 1
        for token_id, logprob in position.items():
            worst = max(worst, abs(logprob.logprob - logprobs_TV[i, token_id].item()))
    return worst


def read_gguf_with_transformers(path: Path) -> PreTrainedModel:
    """The model and its weights as transformers reads them from a GGUF file.

    `from_pretrained(gguf_file=...)` does the same through accelerate, which nothing else here needs.
    """
    config = AutoConfig.from_pretrained(path.parent, gguf_file=path.name)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    tensors = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=model)["tensors"]
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    assert set(missing) <= {"lm_head.weight"}  # tied to the embedding
    assert not unexpected
    model.tie_weights()
    return model.eval()


@pytest.fixture(scope="module")
def smollm2(smollm2_path: Path) -> Iterator[LLM]:
    with LLM(str(smollm2_path), overrides=["model.dtype=float32", "model.max_model_len=1024"]) as llm:
        yield llm


def test_smollm2_writes_what_transformers_writes(smollm2: LLM, smollm2_path: Path) -> None:
    check_against(smollm2, read_gguf_with_transformers(smollm2_path), PROMPTS)


def test_smollm2_knows_the_capital_of_france(smollm2: LLM) -> None:
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    [output] = smollm2.chat(messages, SamplingParams(temperature=0, max_tokens=32), progress=False)
    assert "Paris" in output.outputs[0].text
    assert output.outputs[0].finish_reason == "stop"


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2"])
def test_tiny_checkpoints_write_what_transformers_writes(family: str, request: pytest.FixtureRequest) -> None:
    folder: Path = request.getfixturevalue(f"tiny_{family}_dir")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with LLM(str(folder), overrides=["model.dtype=float32"], progress=False) as llm:
        check_against(llm, model, PROMPTS)
        # The same by transformers' own loop, as a check of the check.
        [output] = llm.generate(
            PROMPTS[0], SamplingParams(temperature=0, max_tokens=16, ignore_eos=True), progress=False
        )
        generated = model.generate(
            torch.tensor([output.prompt_token_ids]),
            attention_mask=torch.ones(1, len(output.prompt_token_ids), dtype=torch.long),
            do_sample=False,
            min_new_tokens=16,
            max_new_tokens=16,
            pad_token_id=0,
        )
        if not set(output.outputs[0].token_ids) & set(llm.config.checkpoint.eos_token_ids):
            assert generated[0, len(output.prompt_token_ids) :].tolist() == output.outputs[0].token_ids


def test_prompt_logprobs_are_those_of_transformers(tiny_llama_dir: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_llama_dir, dtype=torch.float32).eval()
    overrides = ["model.dtype=float32", "scheduler.max_num_batched_tokens=16", "scheduler.max_num_seqs=4"]
    with LLM(str(tiny_llama_dir), overrides=overrides, progress=False) as llm:
        params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=3)
        outputs = llm.generate(PROMPTS[:6], params, progress=False)
    for output in outputs:
        assert output.prompt_logprobs is not None
        assert output.prompt_logprobs[0] is None
        ids = output.prompt_token_ids
        with torch.inference_mode():
            logprobs_TV = model(torch.tensor([ids])).logits[0].float().log_softmax(-1)
        assert len(output.prompt_logprobs) == len(ids)
        for i, position in enumerate(output.prompt_logprobs[1:], start=1):
            assert position is not None
            assert next(iter(position)) == ids[i]
            assert len(position) in (3, 4)
            for token_id, logprob in position.items():
                assert logprob.logprob == pytest.approx(logprobs_TV[i - 1, token_id].item(), abs=1e-3)
            rank = int((logprobs_TV[i - 1] > logprobs_TV[i - 1, ids[i]]).sum()) + 1
            assert position[ids[i]].rank == rank
