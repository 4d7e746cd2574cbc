"""The conditions of a measurement: machine, versions, the evaluator's code; and a worker's environment."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import json
import os
import platform
import re
import subprocess
import sys
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

from passagent.errors import InfrastructureError
from passagent.sandbox.machine_memory import memory_bytes

_ROOT = Path(__file__).resolve().parents[1]
_SOURCES = ["sandbox/*.py", "evaluator/**/*.py", "kernels/*", "plan/*", "tasks/*.py"]

_ALLOWED = {
    "PATH",
    "LANG",
    "LC_ALL",
    "LD_LIBRARY_PATH",
    "CUDA_HOME",
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "CXX",
    "NVIDIA_VISIBLE_DEVICES",
    "VIRTUAL_ENV",
}


def core_shares(count: int) -> list[list[int]]:
    """This process's cores in `count` parts, one for each device measured side by side.

    Two devices that time calls on one core at the same moment would disturb each other, also by its two
    hyperthreads: these stay together. With fewer than two cores for each, all get all.
    """
    cores = sorted(os.sched_getaffinity(0), key=lambda core: (_first_sibling(core), core))
    size = len(cores) // count
    if size < 2:
        return [sorted(cores)] * count
    if any(_first_sibling(core) != core for core in cores):
        size = max(2, size // 2 * 2)
    return [cores[i * size : (i + 1) * size] for i in range(count)]


def _first_sibling(core: int) -> int:
    """The lowest of the core's hyperthreads: itself where it has no other, or nothing tells."""
    try:
        listed = Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list").read_text()
    except OSError:
        return core
    return int(re.split("[,-]", listed)[0])


def worker_threads(threads: int | None) -> int:
    """OpenMP threads of a worker: as wanted, else all cores but one."""
    return threads or max(1, len(os.sched_getaffinity(0)) - 1)


def worker_memory(wanted_gb: float | None) -> int:
    """The address space of a worker, bytes: as wanted, and no more than half of `memory_bytes`; 0: no limit.

    The other half is for eager's worker, the references and whatever else runs here.
    """
    return min(int(wanted_gb * 2**30), memory_bytes() // 2) if wanted_gb else 0


@functools.cache
def device_memory_bytes(device: str) -> int:
    """The memory of the machine (memory.memory_bytes) or of the device: the smaller one."""
    if not device.startswith("cuda"):
        return memory_bytes()
    return min(memory_bytes(), gpu_memory_bytes(device))


def gpu_memory_bytes(device: str) -> int:
    """The whole memory of a GPU."""
    import torch

    return int(torch.cuda.get_device_properties(device).total_memory)


def give_memory_back() -> None:
    """Have the C library return to the system what was freed; it keeps that for the next allocations."""
    ctypes.CDLL(None).malloc_trim(0)


def worker_environment(scratch: Path, threads: int, device: str) -> dict[str, str]:
    """The environment of a candidate, from an allow-list: no key and no token of the parent is in it."""
    inherited = {name: value for name, value in os.environ.items() if name in _ALLOWED}
    # Freed memory stays with the process, on both sides: no page faults for what glibc would give back and
    # ask for again at every call.
    keep = "glibc.malloc.mmap_threshold=1073741824:glibc.malloc.trim_threshold=4294967296"
    private = {
        "HOME": scratch,
        "TMPDIR": scratch,
        "TRITON_CACHE_DIR": scratch / "triton",
        "XDG_CACHE_HOME": scratch,
    }
    fixed = {
        "PYTHONDONTWRITEBYTECODE": "1",
        "GLIBC_TUNABLES": keep,
        "OMP_NUM_THREADS": str(threads),
        "OMP_THREAD_LIMIT": str(threads),  # no kernel takes more than eager has, by a clause of its own
        "MKL_NUM_THREADS": str(threads),
        "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
        # Calls take one stream. The driver makes contexts one after the other, for all processes, and those
        # with a single connection sooner than with 8, CUDA's default.
        "CUDA_DEVICE_MAX_CONNECTIONS": "1",
        "TORCHINDUCTOR_COMPILE_THREADS": "1",  # no pool of processes that a worker would wait for
        "TRITON_DISABLE_LINE_INFO": "1",  # paths in it would make each worker's PTX another one
    }
    return inherited | {name: str(path) for name, path in private.items()} | fixed | gpus_in_sight(device)


def gpus_in_sight(device: str) -> dict[str, str]:
    """Environment variables that hide all GPUs from a process that works on the CPU; none for a GPU.

    Dynamo asks every GPU in sight for its random state. A process that has asked cannot fork one that asks.
    """
    return {} if device.startswith("cuda") else {"CUDA_VISIBLE_DEVICES": ""}


def import_path() -> dict[str, str]:
    """`PYTHONPATH` for a trusted process of ours: it finds what this one finds, wherever that was set up."""
    return {"PYTHONPATH": os.pathsep.join([str(_ROOT.parent), *(path for path in sys.path if path)])}


def ask_module(module: str, *words: str, timeout_s: float | None = None) -> Any:
    """The JSON on the last line that `python -m MODULE WORDS` prints, a trusted process of ours.

    Raises InfrastructureError, with the last line of its errors, where none comes, or not in time.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", module, *words], text=True, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ | import_path(),
    )  # fmt: skip
    try:
        printed, errors = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired as error:
        process.kill()
        with suppress(subprocess.TimeoutExpired):  # a driver may hold it, or what it started its streams
            process.communicate(timeout=1)
        raise InfrastructureError(f"no answer within {timeout_s:g} s") from error
    except BaseException:
        process.kill()
        raise
    try:
        return json.loads(printed.splitlines()[-1])
    except (ValueError, IndexError) as error:
        lines = errors.strip().splitlines() or [f"exit code {process.returncode}"]
        raise InfrastructureError(lines[-1][:300]) from error


@functools.cache
def evaluator_version() -> str:
    """passagent's version and a hash of every source that a result depends on."""
    from passagent import __version__

    digest = hashlib.sha256()
    for pattern in _SOURCES:
        for path in sorted(_ROOT.glob(pattern)):
            if path.is_file() and "__pycache__" not in path.parts:
                digest.update(path.relative_to(_ROOT).as_posix().encode() + b"\0" + path.read_bytes())
    return f"{__version__}+{digest.hexdigest()[:12]}"


def describe(device: str, threads: int) -> dict[str, Any]:
    """Machine, device and library versions, as plain data."""
    import torch

    facts: dict[str, Any] = {
        "machine": platform.machine(),
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "threads": threads,
        "load_1m": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "triton": package_version("triton"),
        "passagent": package_version("passagent"),
    }
    if device.startswith("cuda"):
        properties = torch.cuda.get_device_properties(device)
        facts |= {
            "gpu": properties.name,
            "multiprocessors": properties.multi_processor_count,
            "gpu_memory_gb": round(properties.total_memory / 2**30, 1),
            "cuda": torch.version.cuda,
            "capability": f"{properties.major}.{properties.minor}",
        }
    return facts


def device_name(device: str) -> str:
    """A person's name for the device: the GPU's, or the CPU's model."""
    if device.startswith("cuda"):
        import torch

        return torch.cuda.get_device_name(device)
    return f"{_cpu_model()} ({os.cpu_count()} cores)"


def _cpu_model() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def package_version(package: str) -> str | None:
    """The version of a package, by its distribution's name; None where it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
