"""The contract that every platform option keeps, and what each refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import yaml
from engine.config.catalog import find_conf_dir
from engine.config.component import load_target
from engine.platforms.cpu import CpuPlatform
from engine.platforms.cuda import CudaPlatform
from engine.platforms.detect import detect
from engine.platforms.interface import Platform, kind_of
from engine.platforms.rocm import RocmPlatform
from engine.types.errors import ConfigError
from engine.types.info import DeviceInfo, PlatformInfo

OPTIONS = {
    path.stem: yaml.safe_load(path.read_text())["_target_"]
    for path in sorted((Path(find_conf_dir()) / "platform").glob("*.yaml"))
    if path.stem != "auto"
}


def info_with(capability: tuple[int, int]) -> PlatformInfo:
    device = DeviceInfo(name="GPU", memory_bytes=1, compute_capability=capability)
    return PlatformInfo(kind="cuda", devices=[device], num_cpus=1, host_memory_bytes=1)


@pytest.mark.parametrize(("option", "target"), OPTIONS.items())
def test_every_option_names_a_platform_of_its_own_kind(option: str, target: str) -> None:
    platform_class = load_target(target)
    assert issubclass(platform_class, Platform)
    assert platform_class.kind == option
    platform = platform_class(detect())
    assert platform.device(0).type == ("cpu" if option == "cpu" else "cuda")
    assert platform.dtype("float32") is torch.float32
    with pytest.raises(ConfigError, match=r"'float8'.*bfloat16"):
        platform.dtype("float8")


def test_cpu_platform_counts_memory_and_takes_the_thread_count(monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.get_num_threads()
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    platform = CpuPlatform(detect())
    try:
        platform.activate(0)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert 0 < platform.free_memory_bytes(0) <= platform.total_memory_bytes(0)
    platform.synchronize()
    platform.release()


def test_old_gpus_are_refused_bfloat16_with_the_way_out() -> None:
    with pytest.raises(ConfigError, match=r"model\.dtype=float16"):
        CudaPlatform(info_with((7, 5))).dtype("bfloat16")
    assert CudaPlatform(info_with((9, 0))).dtype("bfloat16") is torch.bfloat16


@pytest.mark.skipif(torch.cuda.is_available(), reason="the machine has what is asked for")
@pytest.mark.parametrize("platform_class", [CudaPlatform, RocmPlatform])
def test_a_device_that_is_not_there_is_a_configuration_error(platform_class: type[Platform]) -> None:
    with pytest.raises(ConfigError, match="platform="):
        platform_class(info_with((9, 0))).activate(0)


def test_kind_of_a_device_is_its_platform() -> None:
    assert kind_of(torch.device("cpu")) == "cpu"
    assert kind_of(torch.device("cuda", 0)) == ("rocm" if torch.version.hip else "cuda")
