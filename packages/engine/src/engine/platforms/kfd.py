"""AMD devices as the kernel driver lists them under /sys/class/kfd; torch-free.

Reads topology files only; HIP_VISIBLE_DEVICES and ROCR_VISIBLE_DEVICES are applied as indices.
"""

from __future__ import annotations

from collections.abc import Mapping

from engine.platforms.host import HostFiles
from engine.types.info import DeviceInfo

_NODES = "sys/class/kfd/kfd/topology/nodes"


def list_devices(files: HostFiles, environment: Mapping[str, str]) -> list[DeviceInfo]:
    """Return the visible devices; empty where there is no driver."""
    nodes = files.root / _NODES
    if not nodes.is_dir():
        return []
    devices: list[DeviceInfo] = []
    for node in sorted((path.name for path in nodes.iterdir() if path.name.isdigit()), key=int):
        properties = _properties(files, f"{_NODES}/{node}/properties")
        if properties.get("simd_count", 0) > 0:  # nodes without SIMD units are CPUs
            devices.append(
                DeviceInfo(
                    name=_name(files, node, properties),
                    memory_bytes=_memory_bytes(files, node),
                    compute_capability=None,
                )
            )
    for variable in ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
        if variable in environment:
            entries = [part.strip() for part in environment[variable].split(",")]
            devices = [devices[int(e)] for e in entries if e.isdigit() and int(e) < len(devices)]
    return devices


def _name(files: HostFiles, node: str, properties: Mapping[str, int]) -> str:
    version = properties.get("gfx_target_version", 0)
    # 90402 is gfx942: major, minor and stepping in two decimal digits each, the last two written in hex.
    gfx = f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}" if version else "AMD GPU"
    marketing = (files.read(f"{_NODES}/{node}/name") or "").strip()
    return f"{marketing} ({gfx})" if marketing else gfx


def _memory_bytes(files: HostFiles, node: str) -> int:
    banks = files.root / _NODES / node / "mem_banks"
    if not banks.is_dir():
        return 0
    sizes = [
        _properties(files, f"{_NODES}/{node}/mem_banks/{bank.name}/properties") for bank in banks.iterdir()
    ]
    return sum(size.get("size_in_bytes", 0) for size in sizes)


def _properties(files: HostFiles, path: str) -> dict[str, int]:
    values: dict[str, int] = {}
    for line in (files.read(path) or "").splitlines():
        key, _, value = line.partition(" ")
        if value.strip().isdigit():
            values[key] = int(value)
    return values
