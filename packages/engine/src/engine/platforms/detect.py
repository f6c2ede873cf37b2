"""What the machine is, read without torch, so that a process that computes nothing never imports it.

A GPU counts only where the installed torch was built for it: a machine with a GPU and a CPU build of torch is
a CPU machine to us.
"""

from __future__ import annotations

import importlib.util
import os
import re
from pathlib import Path

from engine.platforms import host, kfd, nvml
from engine.types.info import DeviceInfo, PlatformInfo


def detect() -> PlatformInfo:
    """Return the facts of this machine."""
    files = host.HostFiles()
    build = find_torch_build()
    return describe(
        files,
        cuda_devices=nvml.list_devices(nvml.load_nvml(), os.environ) if build == "cuda" else [],
        rocm_devices=kfd.list_devices(files, os.environ) if build == "rocm" else [],
    )


def describe(
    files: host.HostFiles,
    *,
    cuda_devices: list[DeviceInfo],
    rocm_devices: list[DeviceInfo],
    affinity: int | None = None,
) -> PlatformInfo:
    """Return the facts of the machine whose files and devices are given."""
    memory = host.total_memory_bytes(files)
    kind, devices = "cpu", [DeviceInfo(name=host.cpu_name(files), memory_bytes=memory)]
    if cuda_devices:
        kind, devices = "cuda", cuda_devices
    elif rocm_devices:
        kind, devices = "rocm", rocm_devices
    return PlatformInfo(
        kind=kind,
        devices=devices,
        num_cpus=host.count_cpus(files, affinity),
        host_memory_bytes=memory,
        cpu_features=host.cpu_features(files),
    )


def find_torch_build() -> str:
    """Return what the installed torch was built for: `cuda`, `rocm` or `cpu`; torch is not imported."""
    spec = importlib.util.find_spec("torch")
    folders = list(spec.submodule_search_locations or []) if spec is not None else []
    return read_torch_build(Path(folders[0]) / "version.py") if folders else "cpu"


def read_torch_build(version_file: Path) -> str:
    """Return the build that torch's version file states."""
    try:
        text = version_file.read_text()
    except OSError:
        return "cpu"
    stated = {name: _assigned(text, name) for name in ("hip", "cuda")}
    if stated["hip"]:
        return "rocm"
    return "cuda" if stated["cuda"] else "cpu"


def _assigned(text: str, name: str) -> str | None:
    match = re.search(rf"^{name}\s*(?::[^=]*)?=\s*['\"]([^'\"]+)['\"]", text, re.MULTILINE)
    return match.group(1) if match else None
