"""The worker: one device and everything on it, behind the calls that an executor makes.

Life: construct (stores), `init_device`, `load_model`, `get_kv_cache_specs`, `get_available_cache_bytes`,
`initialize_cache`, `execute_model` per step, `shutdown`. All calls come from one thread.
"""

from __future__ import annotations

import gc

import kernels

from engine.attention.layer import Attention
from engine.config.component import build, load_target
from engine.config.engine_config import EngineConfig, resolved
from engine.distributed.groups import destroy_groups, init_groups
from engine.execution.runner import EagerRunner
from engine.layers.causal_lm import CausalLM
from engine.layers.context import ModelContext
from engine.platforms.interface import Platform
from engine.types.kv_cache_spec import KVCachePlan, KVCacheSpec
from engine.types.progress import ProgressCallback
from engine.types.runner_output import ModelRunnerOutput
from engine.types.schedule import SchedulerOutput
from engine.worker.kv_tensors import allocate_kv_tensors
from engine.worker.memory import compute_device_cache_bytes, compute_host_cache_bytes
from engine.worker.model_runner import ModelRunner, RunnerLimits

# Enough tokens to leave the single-token paths, few enough to cost nothing.
_WARM_UP_SIZES = (1, 64)


class Worker:
    """Owns the platform, the model, the KV tensors and the model runner of one rank."""

    def __init__(self, config: EngineConfig, rank: int = 0, local_rank: int = 0) -> None:
        self._config = config
        self._rank = rank
        self._local_rank = local_rank
        self._platform: Platform | None = None
        self._model: CausalLM | None = None
        self._runner: ModelRunner | None = None

    def init_device(self) -> None:
        """Take the device, load its kernels and join the process groups."""
        self._platform = build(self._config.platform, self._config.platform_info)
        self._platform.activate(self._local_rank)
        # Compiling them takes seconds where no library is cached: a part of start-up, not of the first step.
        kernels.prepare_device(self._platform.device(self._local_rank))
        init_groups(self._config.parallel, self._rank, backend=self._platform.collective_backend)

    def load_model(self, on_progress: ProgressCallback) -> None:
        """Build the model with empty parameters and load its weights."""
        config = self._config
        context = self._build_context()
        implementation = load_target(config.model.implementation)
        model: CausalLM = implementation(resolved(config.checkpoint).config, context)
        build(config.loader, config).load(model, on_progress)
        self._model = model.eval()
        gc.collect()

    def get_kv_cache_specs(self) -> dict[str, KVCacheSpec]:
        """Return what each attention layer needs, in layer order."""
        return {name: layer.kv_cache_spec() for name, layer in self._attention_layers().items()}

    def get_available_cache_bytes(self) -> int:
        """Return the bytes that the KV cache may take, now that the weights are loaded."""
        platform = self._get_platform()
        specs = self.get_kv_cache_specs()
        if platform.kind == "cpu":
            return compute_host_cache_bytes(self._config, specs, platform.free_memory_bytes(self._local_rank))
        return compute_device_cache_bytes(
            self._config,
            total=platform.total_memory_bytes(self._local_rank),
            free=platform.free_memory_bytes(self._local_rank),
        )

    def initialize_cache(self, plan: KVCachePlan, on_progress: ProgressCallback) -> None:
        """Allocate the KV tensors, bind them to their layers, and run padding once."""
        config = self._config
        device = self._get_platform().device(self._local_rank)
        on_progress("allocate_cache", 0.0)
        tensors = allocate_kv_tensors(plan, device)
        for name, layer in self._attention_layers().items():
            layer.bind_cache(*tensors[name])
        on_progress("allocate_cache", 1.0)
        limits = RunnerLimits(
            max_num_seqs=resolved(config.scheduler.max_num_seqs),
            max_num_tokens=resolved(config.scheduler.max_num_batched_tokens),
            max_model_len=resolved(config.model.max_model_len),
            block_size=plan.block_size,
            vocab_size=resolved(config.checkpoint).vocab_size,
        )
        model = self._model
        assert model is not None, "load_model comes first"
        self._runner = ModelRunner(model, EagerRunner(model), limits, device)
        self._warm_up(limits.max_num_tokens, on_progress)

    def execute_model(self, schedule: SchedulerOutput) -> ModelRunnerOutput:
        """Run one step."""
        assert self._runner is not None, "initialize_cache comes first"
        return self._runner.execute(schedule)

    def shutdown(self) -> None:
        """Free the device: runner (with whatever it captured), model and cache, then the groups."""
        self._runner = None
        self._model = None
        gc.collect()
        destroy_groups()
        if self._platform is not None:
            self._platform.release()
            self._platform = None

    def _build_context(self) -> ModelContext:
        config, platform = self._config, self._get_platform()
        dtype = platform.dtype(config.model.dtype)
        return ModelContext(
            dtype=dtype,
            device=platform.device(self._local_rank),
            quantization=build(config.quantization),
            attention_backend=load_target(config.attention.target),
            cache_dtype=dtype if config.cache.dtype == "auto" else platform.dtype(config.cache.dtype),
            block_size=resolved(config.cache.block_size),
            max_model_len=resolved(config.model.max_model_len),
        )

    def _attention_layers(self) -> dict[str, Attention]:
        assert self._model is not None, "load_model comes first"
        return self._model.attention_layers()

    def _get_platform(self) -> Platform:
        assert self._platform is not None, "init_device comes first"
        return self._platform

    def _warm_up(self, max_num_tokens: int, on_progress: ProgressCallback) -> None:
        assert self._runner is not None
        for done, num_tokens in enumerate(_WARM_UP_SIZES):
            on_progress("warm_up", done / len(_WARM_UP_SIZES))
            self._runner.run_padding(min(num_tokens, max_num_tokens))
        self._get_platform().synchronize()
        on_progress("warm_up", 1.0)
