"""NVIDIA devices as NVML names them, through ctypes; torch-free and without a CUDA context.

Knows the five NVML calls it makes. CUDA_VISIBLE_DEVICES is applied here, because NVML itself ignores it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Protocol

from engine.types.info import DeviceInfo

_SUCCESS = 0
_NAME_LEN = 96


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class NvmlLibrary(Protocol):
    """The part of libnvidia-ml that is used; each returns a status, 0 for success."""

    def nvmlInit_v2(self) -> int: ...
    def nvmlShutdown(self) -> int: ...
    def nvmlDeviceGetCount_v2(self, count: object) -> int: ...
    def nvmlDeviceGetHandleByIndex_v2(self, index: int, device: object) -> int: ...
    def nvmlDeviceGetName(self, device: object, name: object, length: int) -> int: ...
    def nvmlDeviceGetUUID(self, device: object, uuid: object, length: int) -> int: ...
    def nvmlDeviceGetMemoryInfo(self, device: object, memory: object) -> int: ...
    def nvmlDeviceGetCudaComputeCapability(self, device: object, major: object, minor: object) -> int: ...


def load_nvml() -> NvmlLibrary | None:
    """Return the driver's library, or None on a machine without one."""
    try:
        # Returned as the protocol: ctypes gives every symbol as an attribute.
        library: NvmlLibrary = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    return library


def list_devices(library: NvmlLibrary | None, environment: Mapping[str, str]) -> list[DeviceInfo]:
    """Return the visible devices in the order that CUDA numbers them; empty where there is no driver."""
    if library is None or library.nvmlInit_v2() != _SUCCESS:
        return []
    try:
        count = ctypes.c_uint()
        if library.nvmlDeviceGetCount_v2(ctypes.byref(count)) != _SUCCESS:
            return []
        described = [_describe(library, index) for index in range(count.value)]
        return _select_visible(described, environment.get("CUDA_VISIBLE_DEVICES"))
    finally:
        library.nvmlShutdown()


def _describe(library: NvmlLibrary, index: int) -> tuple[str, DeviceInfo]:
    """Return (UUID, device)."""
    device = ctypes.c_void_p()
    name, uuid = ctypes.create_string_buffer(_NAME_LEN), ctypes.create_string_buffer(_NAME_LEN)
    memory, major, minor = _Memory(), ctypes.c_int(), ctypes.c_int()
    library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device))
    library.nvmlDeviceGetName(device, name, _NAME_LEN)
    library.nvmlDeviceGetUUID(device, uuid, _NAME_LEN)
    library.nvmlDeviceGetMemoryInfo(device, ctypes.byref(memory))
    library.nvmlDeviceGetCudaComputeCapability(device, ctypes.byref(major), ctypes.byref(minor))
    info = DeviceInfo(
        name=name.value.decode(errors="replace"),
        memory_bytes=int(memory.total),
        compute_capability=(major.value, minor.value),
    )
    return uuid.value.decode(errors="replace"), info


def _select_visible(described: list[tuple[str, DeviceInfo]], visible: str | None) -> list[DeviceInfo]:
    if visible is None:
        return [device for _, device in described]
    selected: list[DeviceInfo] = []
    for entry in (part.strip() for part in visible.split(",")):
        if entry.isdigit() and int(entry) < len(described):
            selected.append(described[int(entry)][1])
            continue
        # CUDA accepts a prefix of a UUID, and stops at the first entry that names nothing.
        matches = [device for uuid, device in described if entry and uuid.startswith(entry)]
        if not matches:
            break
        selected.append(matches[0])
    return selected
