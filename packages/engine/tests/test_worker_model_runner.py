"""The model runner, driven by hand-made schedules, against transformers on the same weights."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from engine.attention.backends.cpu import CpuAttention
from engine.execution.runner import EagerRunner
from engine.layers.context import ModelContext
from engine.models.llama import LlamaForCausalLM
from engine.quantization.methods.none import Unquantized
from engine.types.kv_cache_spec import KVCachePlan
from engine.types.runner_output import ModelRunnerOutput
from engine.types.sampling_params import SamplingParams
from engine.types.schedule import NewRow, RowBlocks, SchedulerOutput
from engine.worker.kv_tensors import allocate_kv_tensors
from engine.worker.model_runner import ModelRunner, RunnerLimits
from transformers import AutoModelForCausalLM

BLOCK = 4
CPU = torch.device("cpu")
LIMITS = {"max_num_seqs": 8, "max_num_tokens": 64, "max_model_len": 96, "block_size": BLOCK}


@dataclass
class Row:
    """One request as a scheduler would follow it."""

    tokens: list[int]
    num_prompt: int
    params: SamplingParams
    num_computed: int = 0
    blocks: list[int] = field(default_factory=list)
    is_new: bool = True


class Driver:
    """Feeds a model runner with schedules of any split, and keeps the books that a scheduler keeps."""

    def __init__(self, folder: Path) -> None:
        self.reference = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        config = self.reference.config.to_dict() | {"architectures": [type(self.reference).__name__]}
        context = ModelContext(
            dtype=torch.float32,
            device=CPU,
            quantization=Unquantized(),
            attention_backend=CpuAttention,
            cache_dtype=torch.float32,
            block_size=BLOCK,
            max_model_len=LIMITS["max_model_len"],
        )
        model = LlamaForCausalLM(config, context)
        model.load_weights(iter(self.reference.state_dict().items()))
        model.finish_loading()
        specs = {name: layer.kv_cache_spec() for name, layer in model.attention_layers().items()}
        plan = KVCachePlan(num_blocks=200, block_size=BLOCK, layer_specs=specs, bytes=0)
        for name, tensors in allocate_kv_tensors(plan, CPU).items():
            model.attention_layers()[name].bind_cache(*tensors)
        self.vocab_size = config["vocab_size"]
        limits = RunnerLimits(vocab_size=self.vocab_size, **LIMITS)
        self.runner = ModelRunner(model, EagerRunner(model), limits, CPU)
        self.rows: dict[int, Row] = {}
        self.finished_rows: list[int] = []
        self.free_blocks = list(range(1, 200))
        self.step_id = 0

    def add(self, row: int, prompt: list[int], **params: object) -> Row:
        self.rows[row] = Row(list(prompt), len(prompt), SamplingParams(**{"temperature": 0.0, **params}))
        return self.rows[row]

    def preempt(self, row: int) -> None:
        state = self.rows[row]
        self.free_blocks.extend(state.blocks)
        state.blocks, state.num_computed, state.is_new = [], 0, True
        self.finished_rows.append(row)

    def step(self, counts: dict[int, int]) -> ModelRunnerOutput:
        new_rows, new_blocks = [], []
        for row, count in counts.items():
            state = self.rows[row]
            missing = -(-(state.num_computed + count) // BLOCK) - len(state.blocks)
            blocks = [self.free_blocks.pop() for _ in range(missing)]
            state.blocks.extend(blocks)
            if state.is_new:
                new_rows.append(
                    NewRow(
                        row=row,
                        request_id=f"r{row}",
                        token_ids=list(state.tokens),
                        num_prompt_tokens=state.num_prompt,
                        num_computed_tokens=state.num_computed,
                        block_ids=blocks,
                        params=state.params,
                        seed=row,
                    )
                )
                state.is_new = False
            elif blocks:
                new_blocks.append(RowBlocks(row, blocks))
        self.step_id += 1
        finished, self.finished_rows = self.finished_rows, []
        schedule = SchedulerOutput(
            self.step_id, finished, new_rows, new_blocks, list(counts), list(counts.values())
        )
        output = self.runner.execute(schedule)
        for row, count in counts.items():
            self.rows[row].num_computed += count
        for row, token in zip(output.rows, output.sampled_token_ids, strict=True):
            self.rows[row].tokens.append(token)
        return output

    def expected_greedy(self, prompt: list[int], num_tokens: int) -> list[int]:
        tokens = list(prompt)
        for _ in range(num_tokens):
            tokens.append(int(self.expected_logits(tokens)[-1].argmax()))
        return tokens

    @torch.no_grad()
    def expected_logits(self, tokens: list[int]) -> torch.Tensor:
        logits: torch.Tensor = self.reference(torch.tensor([tokens])).logits[0].float()
        return logits


@pytest.fixture(params=["tiny_llama_dir", "tiny_mistral_dir", "tiny_qwen2_dir"])
def driver(request: pytest.FixtureRequest) -> Driver:
    return Driver(request.getfixturevalue(request.param))


def make_prompt(rng: random.Random, driver: Driver, length: int) -> list[int]:
    return [rng.randrange(driver.vocab_size) for _ in range(length)]


def test_any_split_into_steps_gives_the_greedy_tokens_of_transformers(driver: Driver) -> None:
    rng = random.Random(1)
    prompts = {row: make_prompt(rng, driver, length) for row, length in {0: 23, 3: 1, 5: 40, 7: 9}.items()}
    for row, prompt in prompts.items():
        driver.add(row, prompt)
    while any(len(r.tokens) < r.num_prompt + 6 for r in driver.rows.values()):
        counts: dict[int, int] = {}
        for row, state in driver.rows.items():
            left = len(state.tokens) - state.num_computed
            if len(state.tokens) < state.num_prompt + 6 and rng.random() < 0.8:
                counts[row] = rng.randint(1, min(left, 12))
        driver.step(counts)
    for row, prompt in prompts.items():
        assert driver.rows[row].tokens == driver.expected_greedy(prompt, 6)


def test_a_preempted_row_goes_on_with_the_same_tokens(driver: Driver) -> None:
    rng = random.Random(2)
    prompt = make_prompt(rng, driver, 17)
    state = driver.add(2, prompt)
    driver.step({2: 17})
    for _ in range(3):
        driver.step({2: 1})
    driver.preempt(2)
    driver.step({2: len(state.tokens)})
    for _ in range(3):
        driver.step({2: 1})
    assert state.tokens == driver.expected_greedy(prompt, 8)


def test_logprobs_equal_those_of_transformers(driver: Driver) -> None:
    rng = random.Random(3)
    prompt = make_prompt(rng, driver, 12)
    # Penalties change the choice but not what is reported.
    state = driver.add(1, prompt, logprobs=4, presence_penalty=2.0)
    driver.add(4, prompt)
    outputs = [driver.step({1: 12, 4: 12})] + [driver.step({1: 1, 4: 1}) for _ in range(3)]
    for index, output in enumerate(outputs):
        (entry,) = output.logprobs
        assert entry.row == 1
        expected = driver.expected_logits(state.tokens[: 12 + index])[-1].log_softmax(-1)
        token = state.tokens[12 + index]
        ids, values = entry.logprobs.token_ids[0], entry.logprobs.logprobs[0]
        assert ids[0] == token
        assert ids[1:] == expected.topk(4).indices.tolist()
        torch.testing.assert_close(torch.tensor(values), expected[ids], atol=1e-3, rtol=0)
        assert entry.logprobs.ranks == [int((expected > expected[token]).sum()) + 1]


def test_logprobs_of_chosen_ids_come_in_their_order(driver: Driver) -> None:
    prompt = make_prompt(random.Random(4), driver, 5)
    state = driver.add(0, prompt, logprob_token_ids=[9, 2, 30])
    (entry,) = driver.step({0: 5}).logprobs
    assert entry.logprobs.token_ids == [[state.tokens[-1], 9, 2, 30]]
    expected = driver.expected_logits(prompt)[-1].log_softmax(-1)[entry.logprobs.token_ids[0]]
    torch.testing.assert_close(torch.tensor(entry.logprobs.logprobs[0]), expected, atol=1e-3, rtol=0)


@pytest.mark.parametrize("chunks", [[20], [1, 7, 2, 10], [19, 1]])
def test_prompt_logprobs_cover_the_prompt_in_any_chunks(driver: Driver, chunks: list[int]) -> None:
    prompt = make_prompt(random.Random(5), driver, 20)
    driver.add(6, prompt, prompt_logprobs=2)
    driver.add(0, prompt)
    entries = []
    for count in chunks:
        entries.extend(driver.step({0: count, 6: count}).prompt_logprobs)
    assert driver.step({0: 1, 6: 1}).prompt_logprobs == []
    position = 1
    expected = driver.expected_logits(prompt).log_softmax(-1)
    for entry in entries:
        assert (entry.row, entry.start) == (6, position)
        for ids, values in zip(entry.logprobs.token_ids, entry.logprobs.logprobs, strict=True):
            line = expected[position - 1]
            assert ids[0] == prompt[position]
            assert ids[1:] == line.topk(2).indices.tolist()
            torch.testing.assert_close(torch.tensor(values), line[ids], atol=1e-3, rtol=0)
            position += 1
    assert position == 20


def test_an_empty_schedule_only_forgets_rows(driver: Driver) -> None:
    driver.add(0, [1, 2, 3])
    driver.step({0: 3})
    driver.preempt(0)
    output = driver.step({})
    assert output == ModelRunnerOutput(driver.step_id, [], [])
