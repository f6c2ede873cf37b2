"""Offline workloads on dummy weights, sized for a CPU, and a table of what they took.

Greedy, end-of-sequence ignored, token ids in and out. Run from the root of the repository:

    python tests/bench/offline_workloads.py [--json FILE] [--repeat N] [override ...]

Without overrides it builds a 135M-parameter Llama of the shape of SmolLM2 with random bfloat16 weights. Each
figure is the median of `--repeat` whole runs.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import engine

SMOLLM2_135M = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "head_dim": 64,
    "vocab_size": 49152,
    "tie_word_embeddings": True,
    "max_position_embeddings": 8192,
    "rope_theta": 100000,
    "rms_norm_eps": 1e-5,
    "torch_dtype": "bfloat16",
    "bos_token_id": 1,
    "eos_token_id": 2,
}

Generate = Callable[[list[list[int]], list[int]], None]


class Workloads:
    """The measurements; prompts are random, so that no prefix is shared unless the workload says so."""

    def __init__(self, generate: Generate, vocab_size: int, seed: int) -> None:
        self._generate = generate
        self._random = random.Random(seed)
        self._vocab_size = vocab_size

    def run(self) -> dict[str, float]:
        """Return every figure; names end in their unit."""
        for _ in range(2):
            self._time([self._tokens(64)], [8])
        figures = {"bs1_tpot_ms": self._step_ms(1, repeat=3)}
        for length in (128, 1024):
            figures[f"ttft_{length}_ms"] = 1e3 * self._median(lambda n=length: ([self._tokens(n)], [1]), 3)
        for batch_size in (8, 32):
            self._time(self._prompts(batch_size), [4] * batch_size)
            figures[f"decode_bs{batch_size}_step_ms"] = self._step_ms(batch_size, repeat=1)
        figures["mixed64_out_tok_s"] = self._mixed(64)
        figures["shared_prefix_1024_x16_s"] = self._shared_prefix(1024, 16)
        return figures

    def _step_ms(self, batch_size: int, repeat: int) -> float:
        """Time of one decode step: 65 tokens less 1 token, over 64."""
        long = self._median(lambda: (self._prompts(batch_size), [65] * batch_size), repeat)
        short = self._median(lambda: (self._prompts(batch_size), [1] * batch_size), max(repeat, 2))
        return (long - short) / 64 * 1e3

    def _mixed(self, count: int) -> float:
        lengths = random.Random(1)
        prompts = [self._tokens(lengths.randint(32, 256)) for _ in range(count)]
        outs = [lengths.randint(32, 128) for _ in range(count)]
        return sum(outs) / self._time(prompts, outs)

    def _shared_prefix(self, prefix_len: int, count: int) -> float:
        prefix = self._tokens(prefix_len)
        return self._time([prefix + self._tokens(16) for _ in range(count)], [8] * count)

    def _median(self, make: Callable[[], tuple[list[list[int]], list[int]]], repeat: int) -> float:
        return statistics.median(self._time(*make()) for _ in range(repeat))

    def _time(self, prompts: list[list[int]], outs: list[int]) -> float:
        start = time.perf_counter()
        self._generate(prompts, outs)
        return time.perf_counter() - start

    def _prompts(self, count: int) -> list[list[int]]:
        return [self._tokens(64) for _ in range(count)]

    def _tokens(self, count: int) -> list[int]:
        return [self._random.randrange(10, self._vocab_size - 10) for _ in range(count)]


def measure(overrides: list[str], repeat: int) -> dict[str, float]:
    """Return the median of each figure over `repeat` runs of one engine, and its start-up time."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(SMOLLM2_135M))
        start = time.perf_counter()
        with engine.LLM(folder, overrides=["loader=dummy", "model.dtype=bfloat16", *overrides]) as llm:
            startup_s = time.perf_counter() - start

            def generate(prompts: list[list[int]], outs: list[int]) -> None:
                params = [
                    engine.SamplingParams(temperature=0, ignore_eos=True, max_tokens=n, detokenize=False)
                    for n in outs
                ]
                results = llm.generate([{"prompt_token_ids": p} for p in prompts], params, progress=False)
                assert [len(r.outputs[0].token_ids) for r in results] == outs

            # Other prompts every time: the prefix cache must not know the ones of the run before.
            runs = [Workloads(generate, SMOLLM2_135M["vocab_size"], seed).run() for seed in range(repeat)]
    medians = {name: round(statistics.median(run[name] for run in runs), 4) for name in runs[0]}
    return {"startup_s": round(startup_s, 2), **medians}


def main() -> None:
    """Measure, print the table, write JSON where asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--repeat", type=int, default=1, help="whole runs; the median is reported")
    parser.add_argument("overrides", nargs="*", help="engine overrides, as on the command line")
    arguments = parser.parse_args()
    figures = measure(arguments.overrides, arguments.repeat)
    print(f"machine: {platform.processor() or platform.machine()}, {platform.python_version()}")
    for name, value in figures.items():
        print(f"{name:28} {value:10.3f}")
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
