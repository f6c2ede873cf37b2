"""The Llama family against transformers: whole prompts, chunks, decode, mixed batches, two ranks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
import yaml
from distributed_ranks import run_ranks
from engine.attention.backends.cpu import CpuAttention
from engine.attention.backends.torch import TorchAttention
from engine.config.catalog import find_conf_dir
from engine.config.component import load_target
from engine.forward_context import AttentionMetadata, set_forward_context
from engine.layers.causal_lm import CausalLM
from engine.layers.context import ModelContext
from engine.models.llama import LlamaForCausalLM
from engine.quantization.methods.none import Unquantized
from engine.types.errors import CheckpointError
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

VOCAB_SIZE, BLOCK_SIZE, NUM_BLOCKS, MAX_LEN = 211, 4, 64, 96
SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": MAX_LEN,
    "initializer_range": 0.15,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
CONFIGS: dict[str, PretrainedConfig] = {
    "llama": transformers.LlamaConfig(**SHAPE),
    "llama_tied": transformers.LlamaConfig(**SHAPE, tie_word_embeddings=True),
    "llama_wide_heads": transformers.LlamaConfig(**SHAPE, head_dim=24),
    "llama_biases": transformers.LlamaConfig(**SHAPE, attention_bias=True, mlp_bias=True),
    "llama_scaled": transformers.LlamaConfig(**SHAPE, rope_parameters=LLAMA3_ROPE),
    "mistral": transformers.MistralConfig(**SHAPE, sliding_window=None),
    "mistral_window": transformers.MistralConfig(**SHAPE, sliding_window=7),
    "qwen2": transformers.Qwen2Config(**SHAPE, tie_word_embeddings=True),
    "qwen2_window": transformers.Qwen2Config(
        **SHAPE, use_sliding_window=True, sliding_window=5, max_window_layers=1
    ),
}


OPTIONS = {
    path.stem: yaml.safe_load(path.read_text()) for path in sorted((find_conf_dir() / "model").glob("*.yaml"))
}


def test_every_architecture_of_the_family_options_is_compared_below() -> None:
    served = {
        architecture
        for tree in OPTIONS.values()
        if load_target(tree["implementation"]) is LlamaForCausalLM
        for architecture in tree.get("architectures", ())
    }
    compared = {type(build_reference(config)).__name__ for config in CONFIGS.values()}
    assert served == compared


@pytest.mark.parametrize("option", OPTIONS)
def test_model_options_name_a_model_and_a_family_that_is_itself_an_option(option: str) -> None:
    tree = OPTIONS[option]
    assert issubclass(load_target(tree["implementation"]), CausalLM)
    assert OPTIONS[tree["family"]]["architectures"]


@pytest.fixture(scope="module", params=CONFIGS)
def reference(request: pytest.FixtureRequest) -> PreTrainedModel:
    """A random model of transformers whose norms and biases are not trivial."""
    return build_reference(CONFIGS[request.param])


def build_reference(config: PretrainedConfig) -> PreTrainedModel:
    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias") or "norm" in name:
                parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def config_of(reference: PreTrainedModel) -> dict[str, Any]:
    """Return what transformers would write as config.json."""
    return {**reference.config.to_dict(), "architectures": [type(reference).__name__]}


def build_context(backend: type[Any] = CpuAttention, dtype: torch.dtype = torch.float32) -> ModelContext:
    return ModelContext(
        dtype=dtype,
        device=torch.device("cpu"),
        quantization=Unquantized(),
        attention_backend=backend,
        cache_dtype=dtype,
        block_size=BLOCK_SIZE,
        max_model_len=MAX_LEN,
    )


def build_model(
    reference: PreTrainedModel,
    context: ModelContext | None = None,
    config: dict[str, Any] | None = None,
) -> LlamaForCausalLM:
    context = context or build_context()
    model = LlamaForCausalLM(config or config_of(reference), context)
    model.load_weights(reference.state_dict().items())
    model.finish_loading()
    for layer in model.attention_layers().values():
        spec = layer.kv_cache_spec()
        shape = (NUM_BLOCKS, spec.num_kv_heads, spec.block_size, spec.head_size)
        layer.bind_cache(
            torch.zeros(shape, dtype=context.cache_dtype), torch.zeros(shape, dtype=context.cache_dtype)
        )
    return model


class Sequences:
    """Token sequences, each with blocks of its own in a scattered order, computed in any steps."""

    def __init__(self, tokens: list[list[int]]) -> None:
        self.tokens = tokens
        self.computed = [0] * len(tokens)
        blocks = iter(torch.randperm(NUM_BLOCKS - 1, generator=torch.Generator().manual_seed(5)).tolist())
        self.tables = [[1 + next(blocks) for _ in range(-(-len(t) // BLOCK_SIZE))] for t in tokens]

    def step(self, model: LlamaForCausalLM, scheduled: dict[int, int]) -> dict[int, torch.Tensor]:
        """Compute so many tokens of each sequence in one batch; return their logits by sequence."""
        ids: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        starts = [0]
        for sequence, count in scheduled.items():
            done = self.computed[sequence]
            ids += self.tokens[sequence][done : done + count]
            for position in range(done, done + count):
                block = self.tables[sequence][position // BLOCK_SIZE]
                positions.append(position)
                slots.append(block * BLOCK_SIZE + position % BLOCK_SIZE)
            self.computed[sequence] += count
            starts.append(starts[-1] + count)
        width = max(len(table) for table in self.tables)
        metadata = AttentionMetadata(
            query_start_loc_B1=torch.tensor(starts, dtype=torch.int32),
            seq_lens_B=torch.tensor([self.computed[s] for s in scheduled], dtype=torch.int32),
            block_table_BM=torch.tensor(
                [self.tables[s] + [0] * (width - len(self.tables[s])) for s in scheduled], dtype=torch.int32
            ),
            slot_mapping_T=torch.tensor(slots),
            num_requests=len(scheduled),
            num_tokens=len(ids),
            max_query_len=max(scheduled.values()),
            max_seq_len=max(self.computed[s] for s in scheduled),
        )
        with torch.inference_mode(), set_forward_context(metadata):
            logits = model.compute_logits(model(torch.tensor(ids), torch.tensor(positions)))
        return {s: logits[starts[i] : starts[i + 1]] for i, s in enumerate(scheduled)}


def random_tokens(*lengths: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(11)
    return [torch.randint(0, VOCAB_SIZE, (length,), generator=generator).tolist() for length in lengths]


def expected_logits(reference: PreTrainedModel, tokens: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        return reference(torch.tensor([tokens])).logits[0]


def check(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("backend", [CpuAttention, TorchAttention])
def test_whole_prompts_in_one_batch_equal_transformers(
    reference: PreTrainedModel, backend: type[Any]
) -> None:
    model = build_model(reference, build_context(backend))
    sequences = Sequences(random_tokens(23, 1, 9))
    for sequence, logits in sequences.step(model, {0: 23, 1: 1, 2: 9}).items():
        check(logits, expected_logits(reference, sequences.tokens[sequence]))


def test_chunks_decodes_and_prefills_mixed_equal_transformers(reference: PreTrainedModel) -> None:
    model = build_model(reference)
    sequences = Sequences(random_tokens(31, 17, 12))
    steps = [{0: 5}, {0: 11, 1: 3}, {1: 14, 0: 1, 2: 9}, {0: 1, 2: 1}, {2: 1, 0: 13}, {2: 1}]
    found: dict[int, list[torch.Tensor]] = {0: [], 1: [], 2: []}
    for scheduled in steps:
        for sequence, logits in sequences.step(model, scheduled).items():
            found[sequence].append(logits)
    for sequence, tokens in enumerate(sequences.tokens):
        assert sequences.computed[sequence] == len(tokens)
        check(torch.cat(found[sequence]), expected_logits(reference, tokens))


def test_two_ranks_load_and_compute_what_one_does(reference: PreTrainedModel) -> None:
    tokens = random_tokens(19)
    expected = expected_logits(reference, tokens[0])

    def body(rank: int) -> torch.Tensor:
        model = build_model(reference)
        sequences = Sequences(tokens)
        first = sequences.step(model, {0: 12})[0]
        return torch.cat([first, sequences.step(model, {0: 7})[0]])

    for logits in run_ranks(2, body):
        check(logits, expected)


def test_more_ranks_than_kv_heads_compute_the_same() -> None:
    reference = build_reference(transformers.LlamaConfig(**{**SHAPE, "num_key_value_heads": 2}))
    tokens = random_tokens(13)
    expected = expected_logits(reference, tokens[0])

    def body(rank: int) -> torch.Tensor:
        model = build_model(reference)
        assert {layer.kv_cache_spec().num_kv_heads for layer in model.attention_layers().values()} == {1}
        return Sequences(tokens).step(model, {0: 13})[0]

    for logits in run_ranks(4, body):
        check(logits, expected)


def test_keys_of_older_checkpoints_are_understood() -> None:
    """config.json before `rope_parameters`: `rope_theta` and `rope_scaling` apart, no `head_dim`."""
    reference = build_reference(CONFIGS["llama_scaled"])
    config = config_of(reference)
    parameters = config.pop("rope_parameters")
    config.pop("head_dim", None)
    old = {**config, "rope_theta": parameters.pop("rope_theta"), "rope_scaling": parameters}
    tokens = random_tokens(40)
    logits = Sequences(tokens).step(build_model(reference, config=old), {0: 40})[0]
    check(logits, expected_logits(reference, tokens[0]))


def test_windows_of_qwen2_start_at_their_layer_or_are_listed() -> None:
    config: dict[str, Any] = {**SHAPE, "model_type": "qwen2", "sliding_window": 5, "max_window_layers": 2}
    assert LlamaForCausalLM.read_shape(config).sliding_windows == (0, 0, 0)
    config["use_sliding_window"] = True
    assert LlamaForCausalLM.read_shape(config).sliding_windows == (0, 0, 5)
    config["layer_types"] = ["sliding_attention", "full_attention", "sliding_attention"]
    assert LlamaForCausalLM.read_shape(config).sliding_windows == (5, 0, 5)


def test_a_window_counts_in_mistral_and_not_in_llama() -> None:
    config = {**SHAPE, "sliding_window": 6}
    assert LlamaForCausalLM.read_shape({**config, "model_type": "mistral"}).sliding_windows == (6, 6, 6)
    assert LlamaForCausalLM.read_shape({**config, "model_type": "llama"}).sliding_windows == (0, 0, 0)


def test_stored_head_of_a_tied_checkpoint_is_ignored() -> None:
    reference = build_reference(CONFIGS["llama_tied"])
    model = LlamaForCausalLM(config_of(reference), build_context())
    names = [name for name, _ in reference.state_dict().items()]
    assert "lm_head.weight" in names
    assert "lm_head.weight" not in model.checkpoint_shapes()
    loaded = model.load_weights(reference.state_dict().items())
    assert loaded == {name for name, _ in model.named_parameters()}


def test_expected_tensors_are_those_of_transformers_on_every_rank(reference: PreTrainedModel) -> None:
    state = {name: tuple(tensor.shape) for name, tensor in reference.state_dict().items()}
    if reference.config.tie_word_embeddings:
        state.pop("lm_head.weight")
    shapes = run_ranks(
        2, lambda rank: LlamaForCausalLM(config_of(reference), build_context()).checkpoint_shapes()
    )
    assert shapes == [state, state]


def test_attention_layers_are_named_in_order() -> None:
    model = LlamaForCausalLM(config_of(build_reference(CONFIGS["llama"])), build_context())
    assert list(model.attention_layers()) == [f"model.layers.{layer}.self_attn.attn" for layer in range(3)]


def test_a_missing_tensor_is_named() -> None:
    reference = build_reference(CONFIGS["llama"])
    state = dict(reference.state_dict())
    del state["model.layers.1.self_attn.k_proj.weight"]
    with pytest.raises(CheckpointError, match=r"missing: model\.layers\.1\.self_attn\.k_proj\.weight"):
        LlamaForCausalLM(config_of(reference), build_context()).load_weights(state.items())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"num_attention_heads": None}, "num_attention_heads=None"),
        ({"hidden_size": -1}, "hidden_size=-1"),
        ({"num_key_value_heads": 3}, "num_key_value_heads=3"),
        ({"vocab_size": "many"}, "vocab_size='many'"),
        ({"num_hidden_layers": True}, "num_hidden_layers=True"),
        ({"hidden_act": "relu9"}, "hidden_act='relu9'"),
    ],
)
def test_configuration_that_cannot_be_served_is_refused_by_key(change: dict[str, Any], words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        LlamaForCausalLM({**SHAPE, **change}, build_context())


def test_bfloat16_stays_close_to_float32(reference: PreTrainedModel) -> None:
    model = build_model(reference, build_context(dtype=torch.bfloat16))
    tokens = random_tokens(20)
    logits = Sequences(tokens).step(model, {0: 20})[0]
    expected = expected_logits(reference, tokens[0])
    assert logits.dtype is torch.float32
    # Rounding to 8 bits: a few percent of the spread of the logits.
    assert (logits - expected).abs().max() < 0.1 * expected.std() * 3
