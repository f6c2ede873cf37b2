"""Resolution: every open value decided once with its reason, and what cannot work refused."""

from __future__ import annotations

import dataclasses

import pytest
from config_fakes import make_cpu, make_cuda, make_facts
from engine.config.compose import compose
from engine.config.engine_config import EngineConfig
from engine.config.resolve import resolve
from engine.config.rules.transport import Entrypoint
from engine.types.errors import CheckpointError, ConfigError
from engine.types.info import CheckpointFacts, PlatformInfo

MANY_HEADS = {
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 14336,
}


def resolved(
    *overrides: str,
    facts: CheckpointFacts | None = None,
    machine: PlatformInfo | None = None,
    entrypoint: Entrypoint = "async",
) -> EngineConfig:
    composition = compose(["+model=llama", *overrides])
    return resolve(composition, facts or make_facts(), machine or make_cpu(), entrypoint=entrypoint)


def why(config: EngineConfig, key: str) -> str:
    (reason,) = [reason for reason in config.reasons if reason.key == key]
    return reason.why


def refusal(
    *overrides: str, facts: CheckpointFacts | None = None, machine: PlatformInfo | None = None
) -> ConfigError:
    with pytest.raises(ConfigError) as error:
        resolved(*overrides, facts=facts, machine=machine)
    assert "\n" not in str(error.value)
    return error.value


def test_cpu_defaults() -> None:
    config = resolved()
    assert config.platform.option == "cpu"
    assert config.model.dtype == config.cache.dtype == "float32"
    assert config.model.max_model_len == 8192
    assert config.cache.block_size == 16
    assert config.scheduler.max_num_seqs == 128
    assert config.scheduler.max_num_batched_tokens == 2048
    assert (config.loader.option, config.quantization.option, config.attention.option) == (
        "gguf",
        "none",
        "cpu",
    )
    assert (config.executor.option, config.transport.option) == ("inproc", "ipc")
    assert config.compilation.mode == "eager"
    assert config.warnings == []


def test_cuda_defaults() -> None:
    facts = make_facts(format="safetensors", quantization=None)
    config = resolved(facts=facts, machine=make_cuda())
    assert config.platform.option == "cuda"
    assert config.model.dtype == "bfloat16"
    assert config.cache.block_size == 64
    assert config.cache.memory_fraction == 0.9
    assert config.scheduler.max_num_seqs == 1024
    assert config.scheduler.max_num_batched_tokens == 8192
    assert config.loader.option == "safetensors"


def test_nothing_is_left_open_but_what_only_the_worker_knows() -> None:
    config = resolved()
    sections = (config.model, config.parallel, config.cache, config.scheduler, config.compilation)
    autos = [
        field.name
        for section in sections
        for field in dataclasses.fields(section)
        if getattr(section, field.name) == "auto"
    ]
    assert autos == []
    components = ("platform", "attention", "quantization", "loader", "executor", "transport")
    assert all(getattr(config, group).target for group in components)
    assert None not in dataclasses.astuple(config.parallel)
    open_keys = {reason.key for reason in config.reasons if reason.value == "null"}
    assert open_keys == {"cache.memory_bytes", "cache.hash_seed"}


def test_every_reason_names_value_and_what_was_given() -> None:
    config = resolved("+tp=1")
    keys = [reason.key for reason in config.reasons]
    assert len(keys) == len(set(keys))
    assert "parallel.tensor" not in keys
    assert all(reason.why and reason.given in ("auto", "null") for reason in config.reasons)


def test_resolution_is_pure() -> None:
    assert resolved() == resolved()


@pytest.mark.parametrize("feature", ["avx512_bf16", "amx_bf16"])
def test_cpu_with_native_bfloat16_computes_in_it(feature: str) -> None:
    config = resolved(machine=make_cpu("avx2", feature))
    assert config.model.dtype == "bfloat16"
    assert feature in why(config, "model.dtype")


def test_old_gpu_computes_in_float16() -> None:
    assert resolved(machine=make_cuda((7, 5))).model.dtype == "float16"


def test_many_cores_run_more_requests() -> None:
    assert resolved(machine=make_cpu(num_cpus=8)).scheduler.max_num_seqs == 256


def test_gpu_machine_may_be_used_as_a_cpu() -> None:
    config = resolved("platform=cpu", machine=make_cuda())
    assert config.platform.option == "cpu"
    assert config.platform_info is not None
    assert config.platform_info.kind == "cpu"
    assert config.platform_info.devices[0].memory_bytes == make_cuda().host_memory_bytes
    assert config.cache.block_size == 16


def test_platform_that_is_not_there_is_refused() -> None:
    assert "platform='cuda', but this machine is 'cpu'" in str(refusal("platform=cuda"))


def test_family_that_does_not_serve_the_checkpoint_is_refused_with_the_one_that_does() -> None:
    error = refusal(facts=make_facts(architecture="Qwen2ForCausalLM"))
    assert "'Qwen2ForCausalLM'; use +model=qwen2." in str(error)
    assert "served: LlamaForCausalLM" in str(refusal(facts=make_facts(architecture="NewForCausalLM")))


def test_model_preset_of_a_family_serves_the_familys_architectures() -> None:
    config = resolve(compose(["+model=smollm2"]), make_facts(), make_cpu(), entrypoint="offline")
    assert config.model.family == "llama"


def test_offline_use_keeps_the_core_in_process() -> None:
    config = resolved(entrypoint="offline")
    assert config.transport.option == "inproc"
    assert resolved("transport=ipc", entrypoint="offline").transport.option == "ipc"


def test_stream_cannot_share_its_process_with_the_core() -> None:
    assert "use transport=ipc or auto" in str(refusal("transport=inproc"))


@pytest.mark.parametrize(("size", "nearest"), [(2, "1, 3, 9"), (4, "1, 3, 9"), (9, ""), (3, "")])
def test_tensor_size_must_divide_the_heads(size: int, nearest: str) -> None:
    error = refusal(f"+tp={size}", facts=make_facts(config={"intermediate_size": 1152}))
    if nearest:
        assert error.key == "parallel.tensor"
        assert f"sizes that work: {nearest}." in str(error)
    else:  # the shape allows it; no executor runs several workers
        assert error.key == "executor"
        assert f"parallel.tensor={size} needs {size} workers, but executor=inproc runs at most 1" in str(
            error
        )


def test_nearest_sizes_surround_the_one_asked_for() -> None:
    error = refusal("+tp=12", facts=make_facts(config=MANY_HEADS))
    assert "sizes that work: 4, 8, 16, 32." in str(error) or "sizes that work: 2, 4, 8, 16." in str(error)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("+ep=2", "parallel.expert=2 (+ep), but the model has no experts"),
        ("+pp=31", "parallel.pipeline=31 (+pp) is more than the model has layers; use at most 30"),
        ("+dp=2", "parallel.data=2 needs 2 workers"),
        ("+pp=2", "parallel.pipeline=2 needs 2 workers"),
        ("+cp=2", "parallel.context=2 needs 2 workers"),
    ],
)
def test_axes_that_cannot_run_are_refused(override: str, message: str) -> None:
    assert message in str(refusal(override))


def test_context_length_over_the_checkpoints_is_refused() -> None:
    assert resolved("model.max_model_len=100").model.max_model_len == 100
    assert "model.max_model_len=9000 is over the checkpoint's limit; use at most 8192" in str(
        refusal("model.max_model_len=9000")
    )


def test_checkpoint_without_a_limit_needs_one() -> None:
    facts = make_facts(max_position_embeddings=0)
    assert "set it to a number of tokens" in str(refusal(facts=facts))
    assert resolved("model.max_model_len=64", facts=facts).model.max_model_len == 64


def test_open_context_length_shrinks_to_the_blocks_given() -> None:
    config = resolved("cache.num_blocks=9")
    assert config.model.max_model_len == 8 * 16
    assert "cache.num_blocks=9" in why(config, "model.max_model_len")


def test_budget_rises_to_the_rows() -> None:
    config = resolved("scheduler.max_num_seqs=4000")
    assert config.scheduler.max_num_batched_tokens == 4000


def test_rows_shrink_to_a_given_budget() -> None:
    config = resolved("scheduler.max_num_batched_tokens=32")
    assert config.scheduler.max_num_seqs == 32


def test_budget_below_given_rows_is_refused() -> None:
    error = refusal("scheduler.max_num_batched_tokens=32", "scheduler.max_num_seqs=64")
    assert "scheduler.max_num_batched_tokens=32 is less than scheduler.max_num_seqs=64" in str(error)


def test_whole_prompts_must_fit_where_chunks_are_off() -> None:
    off = "scheduler.enable_chunked_prefill=false"
    assert resolved(off).scheduler.max_num_batched_tokens == 8192
    error = refusal(off, "scheduler.max_num_batched_tokens=1024")
    assert "set model.max_model_len to at most 1024" in str(error)


def test_attention_is_chosen_by_capability_with_the_refused_named() -> None:
    config = resolved(machine=make_cuda())
    assert config.attention.option == "torch"
    assert "not cpu: runs on cpu, not cuda" in why(config, "attention")


def test_given_attention_that_cannot_serve_is_refused() -> None:
    error = refusal("attention=cpu", machine=make_cuda())
    assert "attention='cpu' cannot serve this model here: it runs on cpu, not cuda" in str(error)


def test_cache_in_another_dtype_is_refused() -> None:
    assert "cache.dtype='float32' differs from model.dtype='bfloat16'" in str(
        refusal("model.dtype=bfloat16", "cache.dtype=float32")
    )


@pytest.mark.parametrize(
    ("overrides", "facts", "message"),
    [
        ([], {"format": "config"}, "add loader=dummy"),
        (["loader=safetensors"], {}, "loader='safetensors' cannot read"),
        (["loader=gguf"], {"format": "safetensors"}, "loader='gguf' cannot read"),
        ([], {"quantization": "gptq"}, "quantized with 'gptq', which is not supported"),
    ],
)
def test_weights_that_nobody_reads_are_refused(
    overrides: list[str], facts: dict[str, object], message: str
) -> None:
    assert message in str(refusal(*overrides, facts=make_facts(**facts)))


def test_dummy_weights_need_only_a_configuration() -> None:
    config = resolved("loader=dummy", facts=make_facts(format="config", quantization=None))
    assert config.loader.option == "dummy"


def test_quantized_gguf_weights_are_said_to_be_dequantized() -> None:
    assert "GGUF weights (Q4_1) are dequantized to float32" in why(resolved(), "quantization")


@pytest.mark.parametrize(
    ("overrides", "key"),
    [
        (["cache.memory_bytes=100000", "cache.memory_fraction=0.5"], "cache.memory_fraction=0.5"),
        (["cache.enable_prefix_caching=false", "cache.hash_seed=x"], "cache.hash_seed"),
        (
            ["scheduler.enable_chunked_prefill=false", "scheduler.long_prefill_token_threshold=8"],
            "scheduler.long_prefill_token_threshold=8",
        ),
        (["model.path=/a", "model.revision=main"], "model.revision=main"),
        (["model.path=/a", f"model.sha256={'0' * 64}"], "model.sha256"),
    ],
)
def test_setting_that_has_no_effect_is_said_so(overrides: list[str], key: str) -> None:
    (warning,) = resolved(*overrides).warnings
    assert warning.startswith(key)
    assert "has no effect" in warning


@pytest.mark.parametrize("value", [None, 0, "9", True])
def test_broken_sizes_are_the_checkpoints_fault(value: object) -> None:
    with pytest.raises(CheckpointError, match="num_attention_heads"):
        resolved(facts=make_facts(config={"num_attention_heads": value}))


def test_unused_window_is_no_window() -> None:
    unused = {"sliding_window": 4096, "use_sliding_window": False}
    assert resolved(facts=make_facts(config=unused)).attention.option == "cpu"
