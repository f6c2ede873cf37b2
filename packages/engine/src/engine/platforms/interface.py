"""The platform: what the engine may ask of and do to its devices. Nobody else asks torch.cuda."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch

from engine.types.errors import ConfigError
from engine.types.info import PlatformInfo

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class Platform(ABC):
    """Device calls of one kind of machine. Owned by a worker; `activate` comes before any allocation."""

    kind: ClassVar[str]
    """As in `PlatformInfo.kind`."""
    collective_backend: ClassVar[str]
    """What torch.distributed calls the library that moves this platform's tensors."""

    def __init__(self, info: PlatformInfo) -> None:
        self.info = info

    @abstractmethod
    def device(self, local_rank: int) -> torch.device:
        """Return the device of a worker."""

    @abstractmethod
    def activate(self, local_rank: int) -> None:
        """Make this worker's device the current one and start it.

        Raises:
            ConfigError: the machine has no such device.
        """

    @abstractmethod
    def release(self) -> None:
        """Give back what can be given back; the worker's tensors are gone by now."""

    @abstractmethod
    def total_memory_bytes(self, local_rank: int) -> int:
        """Return the memory of a worker's device."""

    @abstractmethod
    def free_memory_bytes(self, local_rank: int) -> int:
        """Return the memory that can be allocated on a worker's device now."""

    @abstractmethod
    def synchronize(self) -> None:
        """Wait until the device has done all that was queued."""

    def dtype(self, name: str) -> torch.dtype:
        """Return the torch dtype of a configured name.

        Raises:
            ConfigError: this platform does not compute in it.
        """
        if name not in _DTYPES:
            raise ConfigError(
                f"dtype {name!r} is unknown; use one of {', '.join(_DTYPES)}.", key="model.dtype"
            )
        return _DTYPES[name]


def kind_of(device: torch.device) -> str:
    """Return the platform kind that a device belongs to; torch's ROCm build calls its devices cuda."""
    return "rocm" if device.type == "cuda" and torch.version.hip is not None else device.type
