"""NVIDIA GPUs through torch.cuda."""

from __future__ import annotations

import torch

from engine.platforms.interface import Platform
from engine.types.errors import ConfigError

_BFLOAT16_SINCE = (8, 0)


class CudaPlatform(Platform):
    """One GPU per worker."""

    kind = "cuda"
    collective_backend = "nccl"

    def device(self, local_rank: int) -> torch.device:
        return torch.device("cuda", local_rank)

    def activate(self, local_rank: int) -> None:
        if not torch.cuda.is_available() or local_rank >= torch.cuda.device_count():
            raise ConfigError(
                f"platform='cuda': torch sees {torch.cuda.device_count()} devices and worker {local_rank} "
                "needs one of its own; lower the parallel sizes or choose platform=cpu.",
                key="platform",
            )
        torch.cuda.set_device(local_rank)
        torch.cuda.init()  # type: ignore[no-untyped-call]

    def release(self) -> None:
        # Without this the caching allocator would keep the memory for as long as the process lives.
        torch.cuda.empty_cache()

    def total_memory_bytes(self, local_rank: int) -> int:
        return torch.cuda.mem_get_info(local_rank)[1]

    def free_memory_bytes(self, local_rank: int) -> int:
        # Blocks that the caching allocator holds and nobody uses can be allocated too.
        cached = torch.cuda.memory_reserved(local_rank) - torch.cuda.memory_allocated(local_rank)
        return torch.cuda.mem_get_info(local_rank)[0] + cached

    def synchronize(self) -> None:
        torch.cuda.synchronize()

    def dtype(self, name: str) -> torch.dtype:
        dtype = super().dtype(name)
        capability = self.info.devices[0].compute_capability if self.info.devices else None
        if dtype is torch.bfloat16 and capability is not None and capability < _BFLOAT16_SINCE:
            raise ConfigError(
                f"dtype 'bfloat16' needs compute capability 8.0; {self.info.devices[0].name!r} has "
                f"{capability[0]}.{capability[1]}. Set model.dtype=float16.",
                key="model.dtype",
            )
        return dtype
