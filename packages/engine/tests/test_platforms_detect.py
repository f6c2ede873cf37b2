"""Machine facts from fake /proc, /sys and cgroup trees, a fake NVML, and what thread variables become."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest
from engine.platforms import host, kfd, nvml
from engine.platforms.detect import describe, detect, read_torch_build
from engine.platforms.threads import choose_num_threads, configure_threads
from engine.types.info import DeviceInfo, PlatformInfo

GIB = 1024**3

CPUINFO = """processor\t: 0
model name\t: Example Processor 9000
flags\t\t: fpu sse2 avx2 avx512f avx512_bf16 amx_bf16 amx_tile invpcid

processor\t: 1
model name\t: Example Processor 9000
flags\t\t: fpu sse2 avx2
"""
MEMINFO = "MemTotal:       16777216 kB\nMemFree:         1048576 kB\nMemAvailable:    8388608 kB\n"
CGROUP2_MOUNT = "30 25 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n"


def write(root: Path, files: dict[str, str]) -> host.HostFiles:
    for path, text in {"proc/cpuinfo": CPUINFO, "proc/meminfo": MEMINFO, **files}.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return host.HostFiles(root)


def test_bare_machine_is_described_by_its_processor_and_memory(tmp_path: Path) -> None:
    info = describe(write(tmp_path, {}), cuda_devices=[], rocm_devices=[], affinity=6)
    assert info == PlatformInfo(
        kind="cpu",
        devices=[DeviceInfo(name="Example Processor 9000", memory_bytes=16 * GIB)],
        num_cpus=6,
        host_memory_bytes=16 * GIB,
        cpu_features=["amx_bf16", "amx_tile", "avx2", "avx512_bf16", "avx512f"],
    )


def test_cgroup2_limits_of_every_ancestor_apply(tmp_path: Path) -> None:
    files = write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/slice/job\n",
            "proc/self/mountinfo": CGROUP2_MOUNT,
            "sys/fs/cgroup/slice/job/cpu.max": "max 100000\n",
            "sys/fs/cgroup/slice/cpu.max": "250000 100000\n",
            "sys/fs/cgroup/slice/job/memory.max": f"{4 * GIB}\n",
            "sys/fs/cgroup/slice/job/memory.current": f"{3 * GIB}\n",
            "sys/fs/cgroup/slice/job/memory.stat": f"anon 5\ninactive_file {GIB}\n",
            "sys/fs/cgroup/slice/memory.max": "max\n",
        },
    )
    assert host.count_cpus(files, affinity=8) == 2
    assert host.total_memory_bytes(files) == 4 * GIB
    # 4 GiB less 3 in use, of which 1 is page cache that gives way.
    assert host.available_memory_bytes(files) == 2 * GIB


def test_cgroup1_controllers_are_followed_each_on_its_own_mount(tmp_path: Path) -> None:
    files = write(
        tmp_path,
        {
            "proc/self/cgroup": "5:memory:/job\n3:cpu,cpuacct:/job\n0::/\n",
            "proc/self/mountinfo": (
                "31 25 0:27 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
                "32 25 0:28 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
            ),
            "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us": "300000\n",
            "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/memory/job/memory.limit_in_bytes": f"{2 * GIB}\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        },
    )
    assert host.count_cpus(files, affinity=8) == 3
    assert host.total_memory_bytes(files) == 2 * GIB


def test_container_mount_that_starts_at_its_own_group_is_understood(tmp_path: Path) -> None:
    files = write(
        tmp_path,
        {
            "proc/self/cgroup": "3:cpu:/docker/abc\n",
            "proc/self/mountinfo": "31 25 0:27 /docker/abc /sys/fs/cgroup/cpu ro - cgroup cgroup rw,cpu\n",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "100000\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
        },
    )
    assert host.count_cpus(files, affinity=8) == 1


@pytest.mark.parametrize(("quota", "expected"), [("50000", 1), ("150000", 1), ("200000", 2), ("999999", 4)])
def test_fractions_of_a_core_round_down_but_never_to_none(tmp_path: Path, quota: str, expected: int) -> None:
    files = write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/\n",
            "proc/self/mountinfo": CGROUP2_MOUNT,
            "sys/fs/cgroup/cpu.max": f"{quota} 100000\n",
        },
    )
    assert host.count_cpus(files, affinity=4) == expected


def test_machine_without_proc_still_has_cores_and_memory(tmp_path: Path) -> None:
    info = describe(host.HostFiles(tmp_path / "nothing"), cuda_devices=[], rocm_devices=[])
    assert info.num_cpus >= 1
    assert info.host_memory_bytes > 0
    assert info.cpu_features == []


def test_this_machine_is_detected() -> None:
    info = detect()
    assert info.num_cpus >= 1
    assert info.devices
    assert all(device.memory_bytes > 0 for device in info.devices)


def test_a_gpu_decides_the_kind(tmp_path: Path) -> None:
    gpu = DeviceInfo(name="GPU", memory_bytes=8 * GIB, compute_capability=(9, 0))
    files = write(tmp_path, {})
    assert describe(files, cuda_devices=[gpu], rocm_devices=[]).kind == "cuda"
    assert describe(files, cuda_devices=[gpu], rocm_devices=[]).devices == [gpu]
    assert describe(files, cuda_devices=[], rocm_devices=[gpu]).kind == "rocm"


class FakeNvml:
    """Two devices, answered through the same out-parameters as the real library."""

    def __init__(self, status: int = 0) -> None:
        self.status = status
        self.num_shutdowns = 0

    def nvmlInit_v2(self) -> int:
        return self.status

    def nvmlShutdown(self) -> int:
        self.num_shutdowns += 1
        return 0

    def nvmlDeviceGetCount_v2(self, count: object) -> int:
        count._obj.value = 2  # type: ignore[attr-defined]
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index: int, device: object) -> int:
        device._obj.value = index + 1  # type: ignore[attr-defined]
        return 0

    def nvmlDeviceGetName(self, device: ctypes.c_void_p, name: ctypes.Array[ctypes.c_char], size: int) -> int:
        name.value = f"Card {device.value}".encode()
        return 0

    def nvmlDeviceGetUUID(self, device: ctypes.c_void_p, uuid: ctypes.Array[ctypes.c_char], size: int) -> int:
        uuid.value = f"GPU-{device.value}abc".encode()
        return 0

    def nvmlDeviceGetMemoryInfo(self, device: ctypes.c_void_p, memory: object) -> int:
        memory._obj.total = (device.value or 0) * GIB  # type: ignore[attr-defined]
        return 0

    def nvmlDeviceGetCudaComputeCapability(self, device: object, major: object, minor: object) -> int:
        major._obj.value, minor._obj.value = 9, 0  # type: ignore[attr-defined]
        return 0


@pytest.mark.parametrize(
    ("visible", "names"),
    [
        (None, ["Card 1", "Card 2"]),
        ("", []),
        ("1", ["Card 2"]),
        ("1,0", ["Card 2", "Card 1"]),
        ("GPU-2", ["Card 2"]),
        ("0,7,1", ["Card 1"]),
        ("-1", []),
    ],
)
def test_nvml_devices_are_those_that_cuda_may_see(visible: str | None, names: list[str]) -> None:
    library = FakeNvml()
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    devices = nvml.list_devices(library, environment)
    assert [device.name for device in devices] == names
    assert all(device.compute_capability == (9, 0) for device in devices)
    assert all(device.memory_bytes == int(device.name[-1]) * GIB for device in devices)
    assert library.num_shutdowns == 1


def test_without_a_driver_there_is_no_nvidia_device() -> None:
    assert nvml.list_devices(None, {}) == []
    assert nvml.list_devices(FakeNvml(status=9), {}) == []


def test_amd_devices_come_from_the_kernel_driver(tmp_path: Path) -> None:
    nodes = "sys/class/kfd/kfd/topology/nodes"
    files = write(
        tmp_path,
        {
            f"{nodes}/0/properties": "cpu_cores_count 64\nsimd_count 0\n",
            f"{nodes}/1/properties": "simd_count 1216\ngfx_target_version 90402\n",
            f"{nodes}/1/mem_banks/0/properties": f"heap_type 1\nsize_in_bytes {192 * GIB}\n",
            f"{nodes}/2/properties": "simd_count 1216\ngfx_target_version 90010\n",
            f"{nodes}/2/mem_banks/0/properties": f"size_in_bytes {64 * GIB}\n",
        },
    )
    devices = kfd.list_devices(files, {})
    assert [(device.name, device.memory_bytes) for device in devices] == [
        ("gfx942", 192 * GIB),
        ("gfx90a", 64 * GIB),
    ]
    assert kfd.list_devices(files, {"HIP_VISIBLE_DEVICES": "1"}) == devices[1:]
    assert kfd.list_devices(host.HostFiles(tmp_path / "nothing"), {}) == []


@pytest.mark.parametrize(
    ("text", "build"),
    [
        ("cuda: Optional[str] = '13.0'\nhip: Optional[str] = None\n", "cuda"),
        ("cuda: Optional[str] = None\nhip: Optional[str] = '7.0'\n", "rocm"),
        ("cuda: Optional[str] = None\nhip: Optional[str] = None\n", "cpu"),
        ("__version__ = '2.12.0'\n", "cpu"),
    ],
)
def test_torch_build_is_read_from_its_version_file(tmp_path: Path, text: str, build: str) -> None:
    (tmp_path / "version.py").write_text(text)
    assert read_torch_build(tmp_path / "version.py") == build


def test_torch_build_read_from_the_file_agrees_with_torch_itself() -> None:
    import torch
    from engine.platforms.detect import find_torch_build

    stated = "rocm" if torch.version.hip else "cuda" if torch.version.cuda else "cpu"
    assert find_torch_build() == stated


def platform_info(kind: str, num_cpus: int) -> PlatformInfo:
    return PlatformInfo(kind=kind, devices=[], num_cpus=num_cpus, host_memory_bytes=GIB)


def test_thread_variables_follow_role_and_machine() -> None:
    environment: dict[str, str] = {}
    configure_threads(platform_info("cpu", 12), role="alone", environment=environment)
    assert environment["OMP_NUM_THREADS"] == environment["MKL_NUM_THREADS"] == "12"
    assert 0 < int(environment["GOMP_SPINCOUNT"]) < 300_000
    assert choose_num_threads(platform_info("cuda", 12)) == 4


def test_what_the_user_set_stays() -> None:
    environment = {"OMP_NUM_THREADS": "3", "GOMP_SPINCOUNT": "7"}
    configure_threads(platform_info("cpu", 12), role="alone", environment=environment)
    assert environment["OMP_NUM_THREADS"] == "3"
    assert environment["GOMP_SPINCOUNT"] == "7"


def test_facts_and_threads_need_no_torch() -> None:
    code = (
        "import sys; from engine.platforms.detect import detect; from engine.platforms import threads;"
        "detect();"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_thread_variables_reach_torch_in_a_fresh_process() -> None:
    code = (
        "from engine.platforms.threads import configure_threads;"
        "from engine.types.info import PlatformInfo;"
        "info = PlatformInfo(kind='cpu', devices=[], num_cpus=1, host_memory_bytes=1);"
        "configure_threads(info, role='alone');"
        "import torch, sys; sys.exit(torch.get_num_threads() != 1)"
    )
    variables = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
    environment = {name: value for name, value in os.environ.items() if name not in variables}
    assert subprocess.run([sys.executable, "-c", code], check=False, env=environment).returncode == 0
