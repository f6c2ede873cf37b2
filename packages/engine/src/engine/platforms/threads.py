"""How many threads numeric libraries start, and how long they spin; set before torch is imported.

OpenMP reads its environment once, when it is loaded, so this runs first in every process that will compute,
and in those that only tokenize, to keep them from taking the cores.
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from typing import Literal

from engine.types.info import PlatformInfo

# How often a thread looks for the next parallel region before it sleeps; libgomp's default is 300,000.
# One decode step of a 135M model in bfloat16 on two cores of a Zen 5 server, ms, beside a busy process:
# 0 turns 12, 300 turns 13, 1,000 turns 17, 3,000 turns 29, 10,000 turns 68, 300,000 turns 130. With the cores
# to itself: 0 turns 14, 1,000 turns 10. An engine shares its cores with the process that serves it.
_SPIN_COUNT = "300"


def configure_threads(
    info: PlatformInfo,
    *,
    role: Literal["engine", "frontend"],
    environment: MutableMapping[str, str] | None = None,
) -> None:
    """Set the thread variables of this process; what the user set stays.

    Args:
        role: `engine` computes with every usable core on a CPU, and needs few where a GPU computes;
            `frontend` moves text and messages.

    Mutates: the environment (the process's own unless another is given).
    """
    variables = os.environ if environment is None else environment
    num_threads = choose_num_threads(info, role)
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        variables.setdefault(name, str(num_threads))
    variables.setdefault("GOMP_SPINCOUNT", _SPIN_COUNT)
    # The same bound for Intel's OpenMP, which counts milliseconds.
    variables.setdefault("KMP_BLOCKTIME", "1")
    if role == "frontend":
        variables.setdefault("OPENBLAS_NUM_THREADS", "1")


def choose_num_threads(info: PlatformInfo, role: Literal["engine", "frontend"]) -> int:
    """Return the number of compute threads for a process of this role."""
    if role == "frontend":
        return 1
    # A GPU's host thread packs a batch and launches kernels; more threads only wake each other up.
    return info.num_cpus if info.kind == "cpu" else min(info.num_cpus, 4)
