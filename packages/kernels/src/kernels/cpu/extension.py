"""Compiles the C++ ops for this processor at first use, keeps the library on disk, and loads it into torch.

Knows the compiler, the flags and the folder; the ops register themselves when the library is loaded. Without
a compiler, or where anything else fails, it says so once and the reference serves.
"""

from __future__ import annotations

import hashlib
import logging
import platform
import shutil
import subprocess
import tempfile
import threading
from pathlib import Path

import torch

from kernels.cpu.code_folder import FolderError, locked, prepare_code_folder, read_verified, store_verified

_SOURCE_FOLDER = Path(__file__).parent
_LIBRARY_NAME = "pagoda_cpu.so"
_COMPILERS = ("g++", "c++")
# No -ffast-math: NaN and infinity carry meaning here.
_FLAGS = ["-std=c++20", "-O3", "-march=native", "-fPIC", "-fopenmp", "-fno-math-errno", "-fno-trapping-math"]
_FLAGS += ["-fvisibility=hidden", "-w"]  # warnings are for development, not for whoever starts a server
_FLAGS_OF = {
    "bindings.cpp": ["-O2"],  # glue over torch's headers: the time goes into reading them
    "gumbel.cpp": ["-ffp-contract=off"],  # its floats are defined operation by operation
}
_COMPILE_TIMEOUT_S = 300.0

_logger = logging.getLogger(__name__)
_lock = threading.Lock()
_is_loaded: bool | None = None


class BuildError(RuntimeError):
    """The library could not be built; the message says why."""


def load() -> bool:
    """Make the C++ ops available, building them where needed; return whether they are."""
    global _is_loaded
    with _lock:
        if _is_loaded is None:
            try:
                torch.ops.load_library(str(build()))  # type: ignore[no-untyped-call]
                _is_loaded = True
            except (BuildError, FolderError, OSError) as error:
                _logger.warning("CPU ops run on the slow reference path: %s", error)
                _is_loaded = False
        return _is_loaded


def build() -> Path:
    """Return the path of the library for this machine, compiled now unless a good one lies in the cache.

    Raises: BuildError, FolderError, OSError.
    """
    compiler = _find_compiler()
    folder = prepare_code_folder("extensions")
    path = folder / compute_key(compiler) / _LIBRARY_NAME
    if not read_verified(path):
        with locked(folder / f"{path.parent.name}.lock", timeout_s=_COMPILE_TIMEOUT_S):
            # Another process may have built it while this one waited.
            if not read_verified(path):
                _compile_to(compiler, path)
    return path


def _find_compiler() -> str:
    for name in _COMPILERS:
        path = shutil.which(name)
        if path is not None:
            return path
    raise BuildError(f"no C++ compiler found (looked for {', '.join(_COMPILERS)}); install g++")


def compute_key(compiler: str) -> str:
    """Return a name that changes with anything the machine code depends on."""
    digest = hashlib.sha256()
    for source in sorted(_SOURCE_FOLDER.glob("*.[ch]*")):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    version = _run([compiler, "--version"])
    for part in (torch.__version__, compiler, version, _processor(), repr(_FLAGS), repr(_FLAGS_OF)):
        digest.update(part.encode() + b"\0")
    return digest.hexdigest()[:32]


def _processor() -> str:
    """Return what -march=native depends on: model and feature flags."""
    cpuinfo = Path("/proc/cpuinfo")
    if not cpuinfo.exists():
        return f"{platform.machine()} {platform.processor()}"
    fields = {"vendor_id", "cpu family", "model", "flags", "Features", "CPU part"}
    first_core = cpuinfo.read_text().split("\n\n")[0]
    return "\n".join(line for line in first_core.splitlines() if line.split("\t")[0].strip() in fields)


def _compile_to(compiler: str, path: Path) -> None:
    path.parent.mkdir(mode=0o700, exist_ok=True)
    _logger.info("compiling the CPU ops for this processor (once, about 10 s)")
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        objects = _compile_sources(compiler, Path(folder))
        library = Path(folder) / _LIBRARY_NAME
        torch_libraries = Path(torch.__file__).parent / "lib"
        # No -fopenmp here: the OpenMP symbols then resolve to the runtime torch itself loaded, whatever its
        # file name, and both share one pool of threads.
        libraries = [f"-L{torch_libraries}", "-ltorch_cpu", "-lc10"]
        _run([compiler, "-shared", *map(str, objects), "-o", str(library), *libraries])
        store_verified(library, path)


def _compile_sources(compiler: str, folder: Path) -> list[Path]:
    include = Path(torch.__file__).parent / "include"
    includes = ["-isystem", str(include), "-isystem", str(include / "torch/csrc/api/include")]
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}"
    jobs: list[tuple[Path, subprocess.Popen[str]]] = []
    # All files at once; the largest takes five seconds.
    for source in sorted(_SOURCE_FOLDER.glob("*.cpp")):
        out = folder / f"{source.stem}.o"
        flags = [*_FLAGS, *_FLAGS_OF.get(source.name, []), abi, *includes]
        command = [compiler, *flags, "-c", str(source), "-o", str(out)]
        jobs.append((out, subprocess.Popen(command, stderr=subprocess.PIPE, text=True)))
    try:
        for out, job in jobs:
            _, errors = job.communicate(timeout=_COMPILE_TIMEOUT_S)
            if job.returncode != 0:
                raise BuildError(f"compiling {out.stem}.cpp failed: {errors.strip()[:500]}")
    except subprocess.TimeoutExpired as error:
        raise BuildError(f"compiling took more than {_COMPILE_TIMEOUT_S:.0f} s") from error
    finally:
        for _, job in jobs:
            if job.poll() is None:
                job.kill()
                job.communicate()
    return [out for out, _ in jobs]


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_COMPILE_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise BuildError(f"{command[0]} took more than {_COMPILE_TIMEOUT_S:.0f} s") from error
    if done.returncode != 0:
        raise BuildError(f"{command[0]} failed: {done.stderr.strip()[:500]}")
    return done.stdout
