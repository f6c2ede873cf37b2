"""How many threads numeric libraries start, and how long they spin; set before torch is imported.

OpenMP reads its environment once, when it is loaded, so this runs first in every process that will compute.
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from typing import Literal

from engine.types.info import PlatformInfo

Role = Literal["alone", "beside_frontend"]
"""Whether a process computes with the cores to itself (offline), or beside the process that serves it."""

# How often a thread looks for the next parallel region before it sleeps; libgomp's default is 300,000.
# A 135M model in bfloat16 on two cores of a Zen 5 server:
# - step at batch 1 beside a busy process, ms: 0 turns 12, 300 turns 13, 1,000 turns 17, 3,000 turns 29,
#   10,000 turns 68;
# - the same with the cores to itself: 300 turns 14.7, 1,000 turns 14.0, 3,000 turns 11.8, 20,000 turns 11.6;
# - 32 streams over HTTP, tokens/s: 300 turns 712-824, 1,000 turns 898-904, 3,000 turns 914-924.
_SPIN_COUNTS: dict[Role, str] = {"alone": "3000", "beside_frontend": "1000"}


def configure_threads(
    info: PlatformInfo,
    *,
    role: Role,
    environment: MutableMapping[str, str] | None = None,
) -> None:
    """Set the thread variables of this process; what the user set stays.

    Mutates: the environment (the process's own unless another is given).
    """
    variables = os.environ if environment is None else environment
    num_threads = choose_num_threads(info)
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        variables.setdefault(name, str(num_threads))
    variables.setdefault("GOMP_SPINCOUNT", _SPIN_COUNTS[role])
    # The same bound for Intel's OpenMP, which counts milliseconds.
    variables.setdefault("KMP_BLOCKTIME", "1")


def choose_num_threads(info: PlatformInfo) -> int:
    """Return the number of compute threads of a process."""
    # A GPU's host thread packs a batch and launches kernels; more threads only wake each other up.
    return info.num_cpus if info.kind == "cpu" else min(info.num_cpus, 4)
