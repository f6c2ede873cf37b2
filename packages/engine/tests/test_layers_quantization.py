"""The contract of every quantization option: a linear layer made by it computes what the plain one does."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
import yaml
from engine.attention.backends.torch import TorchAttention
from engine.config.catalog import find_conf_dir
from engine.config.component import load_target
from engine.layers.context import ModelContext
from engine.layers.linear import MergedColumnParallelLinear, QKVParallelLinear, RowParallelLinear
from engine.quantization.method import QuantizationMethod

OPTIONS = {
    path.stem: yaml.safe_load(path.read_text())
    for path in sorted((find_conf_dir() / "quantization").glob("*.yaml"))
    if path.stem != "auto"
}


def build_method(option: str) -> QuantizationMethod:
    tree = OPTIONS[option]
    method = load_target(tree["_target_"])(**{key: tree[key] for key in tree if key != "_target_"})
    assert isinstance(method, QuantizationMethod)
    return method


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("num_rows", [1, 7, 33])
def test_layers_compute_their_full_tensors(option: str, dtype: torch.dtype, num_rows: int) -> None:
    context = ModelContext(
        dtype=dtype,
        device=torch.device("cpu"),
        quantization=build_method(option),
        attention_backend=TorchAttention,
        cache_dtype=dtype,
        block_size=16,
        max_model_len=64,
    )
    generator = torch.Generator().manual_seed(0)
    layers = [
        MergedColumnParallelLinear(64, {"a": 32, "b": 96}, bias=True, context=context, prefix="merged"),
        QKVParallelLinear(64, 16, 4, 2, bias=True, context=context, prefix="qkv"),
        RowParallelLinear(64, 32, bias=False, context=context, prefix="row"),
    ]
    for layer in layers:
        full = {
            name: torch.randn(parameter.shape, generator=generator).to(dtype)
            for name, parameter in layer.named_parameters()
        }
        for name, tensor in full.items():
            layer.get_parameter(name).load_shard(tensor)  # type: ignore[attr-defined]
        layer.finish()
        x = torch.randn(num_rows, 64, generator=generator).to(dtype)
        bias = full.get("bias")
        expected = F.linear(x.double(), full["weight"].double(), None if bias is None else bias.double())
        tolerance = 1e-4 if dtype is torch.float32 else 2e-1  # sums of 64 products near 8, kept in 8 bits
        torch.testing.assert_close(layer(x).double(), expected, atol=tolerance, rtol=tolerance)
