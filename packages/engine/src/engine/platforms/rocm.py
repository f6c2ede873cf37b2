"""AMD GPUs: torch's ROCm build answers under the names of torch.cuda."""

from __future__ import annotations

import torch

from engine.platforms.interface import Platform
from engine.types.errors import ConfigError


class RocmPlatform(Platform):
    """One GPU per worker."""

    kind = "rocm"
    collective_backend = "nccl"

    def device(self, local_rank: int) -> torch.device:
        return torch.device("cuda", local_rank)

    def activate(self, local_rank: int) -> None:
        if torch.version.hip is None:
            raise ConfigError(
                "platform='rocm' needs a ROCm build of torch, which this is not. Choose platform=auto.",
                key="platform",
            )
        if local_rank >= torch.cuda.device_count():
            raise ConfigError(
                f"platform='rocm': torch sees {torch.cuda.device_count()} devices and worker {local_rank} "
                "needs one of its own; lower the parallel sizes.",
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
