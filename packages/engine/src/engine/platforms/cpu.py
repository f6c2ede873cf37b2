"""The host as a device: memory is what the cgroup and the machine leave, nothing is asynchronous."""

from __future__ import annotations

import os

import torch

from engine.platforms import host
from engine.platforms.interface import Platform
from engine.platforms.threads import choose_num_threads


class CpuPlatform(Platform):
    """Computes on the host's cores."""

    kind = "cpu"
    collective_backend = "gloo"

    def device(self, local_rank: int) -> torch.device:
        return torch.device("cpu")

    def activate(self, local_rank: int) -> None:
        # Matters only where torch was imported before the thread variables were set (a notebook, a test).
        wanted = os.environ.get("OMP_NUM_THREADS", "")
        num_threads = int(wanted) if wanted.isdigit() else choose_num_threads(self.info)
        if torch.get_num_threads() != num_threads:
            torch.set_num_threads(num_threads)

    def release(self) -> None:
        """Do nothing: freed tensors are freed memory."""

    def total_memory_bytes(self, local_rank: int) -> int:
        return self.info.host_memory_bytes

    def free_memory_bytes(self, local_rank: int) -> int:
        return host.available_memory_bytes(host.HostFiles())

    def synchronize(self) -> None:
        """Do nothing: every op is done when it returns."""
