"""The same model on a GPU: device facts, the torch backend, and logits against transformers on the CPU."""

from __future__ import annotations

import pytest
import torch
from engine.attention.backends.torch import TorchAttention
from engine.forward_context import AttentionMetadata, set_forward_context
from engine.layers.context import ModelContext
from engine.models.llama import LlamaForCausalLM
from engine.platforms.cuda import CudaPlatform
from engine.platforms.detect import detect
from engine.platforms.interface import kind_of
from engine.quantization.methods.none import Unquantized
from transformers import LlamaConfig
from transformers import LlamaForCausalLM as Reference

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available() or torch.version.hip is not None, reason="needs CUDA"),
]


def test_devices_read_without_torch_are_those_of_torch() -> None:
    info = detect()
    assert info.kind == "cuda"
    assert len(info.devices) == torch.cuda.device_count()
    properties = torch.cuda.get_device_properties(0)
    assert info.devices[0].name == properties.name
    assert info.devices[0].compute_capability == (properties.major, properties.minor)
    # The driver keeps some of the card's memory for itself.
    assert 0.95 < properties.total_memory / info.devices[0].memory_bytes <= 1.0


def test_platform_counts_its_memory() -> None:
    platform = CudaPlatform(detect())
    platform.activate(0)
    free = platform.free_memory_bytes(0)
    held = torch.empty(256 * 1024**2, dtype=torch.uint8, device=platform.device(0))
    assert free - platform.free_memory_bytes(0) >= held.numel()
    del held
    platform.synchronize()
    assert platform.free_memory_bytes(0) <= platform.total_memory_bytes(0)
    platform.release()
    assert torch.cuda.memory_reserved(0) < 256 * 1024**2


def test_chunked_prefill_and_decode_equal_transformers() -> None:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=211,
        hidden_size=64,
        intermediate_size=112,
        num_hidden_layers=3,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=64,
        initializer_range=0.15,
        tie_word_embeddings=True,
    )
    reference = Reference(config).float().eval()
    platform = CudaPlatform(detect())
    platform.activate(0)
    device = platform.device(0)
    assert kind_of(device) == "cuda"
    context = ModelContext(
        dtype=torch.float32,
        device=device,
        quantization=Unquantized(),
        attention_backend=TorchAttention,
        cache_dtype=torch.float32,
        block_size=8,
        max_model_len=64,
    )
    with torch.device(device):
        model = LlamaForCausalLM({**config.to_dict(), "architectures": ["LlamaForCausalLM"]}, context)
    model.load_weights(reference.state_dict().items())
    model.finish_loading()
    for layer in model.attention_layers().values():
        layer.bind_cache(*(torch.zeros(8, 4, 8, 8, device=device) for _ in range(2)))
    tokens = torch.randint(0, 211, (40,))
    with torch.inference_mode():
        expected = reference(tokens[None]).logits[0]
    found: list[torch.Tensor] = []
    for start, end in ((0, 17), (17, 38), (38, 39), (39, 40)):
        metadata = AttentionMetadata(
            query_start_loc_B1=torch.tensor([0, end - start], dtype=torch.int32, device=device),
            seq_lens_B=torch.tensor([end], dtype=torch.int32, device=device),
            block_table_BM=torch.arange(1, 7, dtype=torch.int32, device=device)[None],
            slot_mapping_T=torch.arange(8 + start, 8 + end, device=device),
            num_requests=1,
            num_tokens=end - start,
            max_query_len=end - start,
            max_seq_len=end,
        )
        positions = torch.arange(start, end, device=device)
        with torch.inference_mode(), set_forward_context(metadata):
            hidden = model(tokens[start:end].to(device), positions)
            found.append(model.compute_logits(hidden).cpu())
    torch.testing.assert_close(torch.cat(found), expected, atol=1e-4, rtol=0)
