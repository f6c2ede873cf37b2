"""Facts of the host from /proc, /sys and cgroups: usable cores, memory, CPU features; torch-free.

Knows Linux files. Where one is missing (another system, a locked-down container) a fact falls back to what
the standard library says. It knows nothing of accelerators.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path

_X86 = "avx avx2 fma f16c avx_vnni avx512f avx512bw avx512vl avx512_bf16 avx512_fp16 avx512_vnni"
_X86_TILES = "amx_tile amx_bf16 amx_int8 amx_fp16"
_ARM = "asimd asimddp bf16 i8mm sve sve2"

CPU_FEATURES = frozenset(f"{_X86} {_X86_TILES} {_ARM}".split())
"""Flags that decide which kernels are worth taking (x86 and arm64 names of /proc/cpuinfo)."""


@dataclass(frozen=True, slots=True)
class HostFiles:
    """Where the kernel's files lie; tests point `root` at a folder of their own."""

    root: Path = Path("/")

    def read(self, path: str) -> str | None:
        """Return a file's text by absolute path, or None where it cannot be read."""
        try:
            return (self.root / path.lstrip("/")).read_text(errors="replace")
        except OSError:
            return None


def count_cpus(files: HostFiles, affinity: int | None = None) -> int:
    """Return how many threads can run at once: affinity and cgroup quota applied, at least 1.

    A quota of 1.5 cores counts as 1: a second thread would be throttled in the middle of a parallel region
    and hold up the first.
    """
    cpus = affinity if affinity is not None else _count_affinity()
    quota = _cgroup_cpus(files)
    return max(1, cpus if quota is None else min(cpus, math.floor(quota + 1e-6)))


def total_memory_bytes(files: HostFiles) -> int:
    """Return the memory this process may use at most, cgroup limit applied."""
    total = _meminfo(files).get("MemTotal", 0) or _sysconf_memory()
    return min([total, *(limit for limit, _ in _cgroup_memory(files))])


def available_memory_bytes(files: HostFiles) -> int:
    """Return the memory that can be taken now without pushing anything out, cgroup limits applied."""
    meminfo = _meminfo(files)
    available = meminfo.get("MemAvailable", meminfo.get("MemFree", 0)) or _sysconf_memory()
    return max(0, min([available, *(limit - used for limit, used in _cgroup_memory(files))]))


def cpu_features(files: HostFiles) -> list[str]:
    """Return the flags of the first processor that matter, sorted."""
    for line in (files.read("/proc/cpuinfo") or "").splitlines():
        key, _, value = line.partition(":")
        if key.strip().lower() in ("flags", "features"):
            return sorted(CPU_FEATURES.intersection(value.lower().split()))
    return []


def cpu_name(files: HostFiles) -> str:
    """Return the processor's name, or `CPU`."""
    for line in (files.read("/proc/cpuinfo") or "").splitlines():
        key, _, value = line.partition(":")
        if key.strip().lower() == "model name" and value.strip():
            return value.strip()
    return "CPU"


def _count_affinity() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _sysconf_memory() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return 0


def _meminfo(files: HostFiles) -> dict[str, int]:
    values: dict[str, int] = {}
    for line in (files.read("/proc/meminfo") or "").splitlines():
        key, _, rest = line.partition(":")
        number = rest.split()
        if number and number[0].isdigit():
            values[key] = int(number[0]) * 1024
    return values


def _cgroup_cpus(files: HostFiles) -> float | None:
    """Return the tightest CPU quota on the way from this process's group to the root, in cores."""
    quotas: list[float] = []
    for folder in _cgroup_folders(files, "cpu"):
        fields = (files.read(f"{folder}/cpu.max") or "").split()  # version 2: "quota period"
        if len(fields) != 2:
            names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
            fields = [(files.read(f"{folder}/{name}") or "").strip() for name in names]
        quota, period = fields
        # Without a limit the quota is "max" (version 2) or -1 (version 1).
        if quota.isdigit() and period.isdigit() and int(quota) > 0 and int(period) > 0:
            quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def _cgroup_memory(files: HostFiles) -> list[tuple[int, int]]:
    """Return (limit, bytes in use that cannot be reclaimed) of each limiting group up to the root."""
    found: list[tuple[int, int]] = []
    for folder in _cgroup_folders(files, "memory"):
        limit = _read_int(files, f"{folder}/memory.max", f"{folder}/memory.limit_in_bytes")
        used = _read_int(files, f"{folder}/memory.current", f"{folder}/memory.usage_in_bytes")
        # Version 1 writes "no limit" as a number near 2**63.
        if limit is not None and limit < 1 << 60:
            found.append((limit, max(0, (used or 0) - _reclaimable_bytes(files, folder))))
    return found


def _reclaimable_bytes(files: HostFiles, folder: str) -> int:
    """Return the page cache that the kernel drops before it refuses memory; it is counted as used."""
    values: dict[str, int] = {}
    for line in (files.read(f"{folder}/memory.stat") or "").splitlines():
        key, _, value = line.partition(" ")
        if value.isdigit():
            values[key] = int(value)
    return values.get("total_inactive_file", values.get("inactive_file", 0))


def _read_int(files: HostFiles, *paths: str) -> int | None:
    for path in paths:
        text = (files.read(path) or "").strip()
        if text.isdigit():
            return int(text)
    return None


def _cgroup_folders(files: HostFiles, controller: str) -> list[str]:
    """Return this process's group folder and its parents, for version 2 and for version 1's controller."""
    groups = _cgroup_paths(files)
    folders: list[str] = []
    for line in (files.read("/proc/self/mountinfo") or "").splitlines():
        # 36 35 98:0 /root /mount/point options [optional fields] - type source superoptions
        left, _, right = line.partition(" - ")
        fields, kind = left.split(), right.split()
        if len(fields) < 5 or len(kind) < 3 or kind[0] not in ("cgroup", "cgroup2"):
            continue
        name = "" if kind[0] == "cgroup2" else controller
        if name and name not in kind[2].split(","):
            continue
        group = groups.get(name)
        if group is not None:
            folders += _walk_up(mount_point=fields[4], mount_root=fields[3], group=group)
    return folders


def _cgroup_paths(files: HostFiles) -> dict[str, str]:
    """Return this process's group by version 1 controller; "" is version 2."""
    paths: dict[str, str] = {}
    for line in (files.read("/proc/self/cgroup") or "").splitlines():
        parts = line.split(":", 2)
        if len(parts) == 3:
            for name in parts[1].split(","):
                paths[name] = parts[2]
    return paths


def _walk_up(*, mount_point: str, mount_root: str, group: str) -> list[str]:
    # Inside a container the mount often starts at the container's own group, which /proc names in full.
    if mount_root != "/" and (group == mount_root or group.startswith(mount_root + "/")):
        group = group[len(mount_root) :]
    parts = [part for part in group.split("/") if part and part != ".."]
    return ["/".join([mount_point.rstrip("/"), *parts[:depth]]) for depth in range(len(parts), -1, -1)]
