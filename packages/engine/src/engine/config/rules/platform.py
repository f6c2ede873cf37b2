"""Where the model runs, in which dtype, and how a step is run."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from engine.config.component import ComponentConfig
from engine.config.compose import Composition
from engine.config.model import ModelConfig
from engine.config.ranges import DtypeName
from engine.config.rules.choice import get_option
from engine.config.rules.record import Record
from engine.types.errors import ConfigError
from engine.types.info import DeviceInfo, PlatformInfo

_BFLOAT16_CPU_FEATURES = ("avx512_bf16", "amx_bf16")
_BFLOAT16_COMPUTE_CAPABILITY = (8, 0)


def resolve_platform(
    composition: Composition, info: PlatformInfo, record: Record
) -> tuple[ComponentConfig, PlatformInfo]:
    """Return the platform option and the facts of the part of the machine that it uses."""
    given = composition.engine.platform
    devices = ", ".join(sorted({device.name for device in info.devices})) or "no device"
    if given.option == "auto":
        record.decide("platform", info.kind, "auto", f"found {len(info.devices)} x {devices}")
        return get_option(composition, "platform", info.kind), info
    if given.option == info.kind:
        return given, info
    if given.option == "cpu":
        host = DeviceInfo(name="cpu", memory_bytes=info.host_memory_bytes)
        return given, replace(info, kind="cpu", devices=[host])
    raise ConfigError(
        f"platform={given.option!r}, but this machine is {info.kind!r} ({devices}); use platform=auto, and "
        f"where the device is there, a torch built for {given.option}.",
        key="platform",
    )


def resolve_dtype(model: ModelConfig, platform: PlatformInfo, record: Record) -> DtypeName:
    """Return the dtype of weights and activations."""
    if model.dtype != "auto":
        return model.dtype
    if platform.kind == "cpu":
        native = [name for name in _BFLOAT16_CPU_FEATURES if name in platform.cpu_features]
        dtype: DtypeName = "bfloat16" if native else "float32"
        why = (
            f"the CPU computes bfloat16 natively ({native[0]})"
            if native
            else "the CPU has no native bfloat16"
        )
    else:
        capability = min((d.compute_capability or (8, 0) for d in platform.devices), default=(8, 0))
        dtype = "bfloat16" if capability >= _BFLOAT16_COMPUTE_CAPABILITY else "float16"
        why = f"{platform.kind} devices of compute capability {capability[0]}.{capability[1]}"
    record.decide("model.dtype", dtype, "auto", why)
    return dtype


def resolve_compilation(mode: str, record: Record) -> Literal["eager"]:
    """Return how a forward pass runs."""
    if mode == "auto":
        record.decide("compilation.mode", "eager", "auto", "the way of running that every platform has")
    return "eager"
