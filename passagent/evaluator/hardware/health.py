"""Check whether a device is fit for measuring, and read its state.

`device_state` is kept with every result. `check` runs this module as a fresh small process on a device that
lost an evaluation; it names what is wrong, or finds nothing.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import sys
from pathlib import Path
from typing import Any

from passagent.errors import InfrastructureError
from passagent.evaluator.hardware.devices import Device, find_device
from passagent.evaluator.hardware.nvml import SICK_REASONS, gpu_problem, gpu_state
from passagent.sandbox.environment import import_path
from passagent.sandbox.faults import check_places

CHECK_TIMEOUT_S = 90.0
"""For a whole health check, most of which is torch's import, s."""
MIN_FREE_GIB = 1.0
"""Free memory, host's or GPU's, without which nothing is measured."""
_FORK_SERVER = "passagent.sandbox.fork_server"


def device_state(device: str) -> dict[str, Any]:
    """The state of `cpu` or `cuda:N` now, as plain data; a key is missing where nothing tells.

    GPU: sm_mhz, mem_mhz, temperature_c, power_w, throttle (names), other_processes (neither above nor below
    this process; those of another PID namespace are not counted). CPU: load_1m, governor.
    """
    if not device.startswith("cuda"):
        governor = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
        state: dict[str, Any] = {"load_1m": round(os.getloadavg()[0], 2)}
        if governor.is_file():
            state["governor"] = governor.read_text().strip()
        return state
    state = gpu_state(_uuid(device))
    state.pop("free_gib", None)
    if "pids" in state:
        state["other_processes"] = sum(_is_foreign(pid) for pid in state.pop("pids"))
    return state


def is_throttled(state: dict[str, Any]) -> bool:
    """Tell whether a device_state (or a dict of several) shows a device that slows itself down."""
    return any(SICK_REASONS & set(one.get("throttle", [])) for one in _states(state))


def others_on(state: dict[str, Any]) -> int:
    """Processes of other programs that used the GPU when a device_state, or one of several, was taken."""
    return max(int(one.get("other_processes", 0)) for one in _states(state))


def _states(state: dict[str, Any]) -> list[dict[str, Any]]:
    return [state, *(value for value in state.values() if isinstance(value, dict))]


def crowded(others: int) -> str:
    """In words: why memory ran out is not known, as so many processes of other programs took some."""
    return f"out of memory on a GPU that {others} process(es) of other programs use"


async def check(device: Device, quick: bool = False) -> str | None:
    """Name the fault of the device, in a line; None if it is healthy. `quick` launches no kernel."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "passagent.evaluator.hardware.health", device.name, device.uuid),
        *(["quick"] if quick else []),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=os.environ | import_path(),
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(CHECK_TIMEOUT_S):
            out, err = await process.communicate()
    except TimeoutError:
        return f"no answer to a health check within {CHECK_TIMEOUT_S:.0f} s"
    finally:
        if process.returncode is None:  # not waited for: a process in the driver's hands may never end
            process.kill()
    try:
        problem = json.loads(out)["problem"]
    except (ValueError, KeyError, TypeError):
        lines = err.decode(errors="replace").strip().splitlines()
        return f"the health check failed: {lines[-1][:300] if lines else f'exit code {process.returncode}'}"
    return None if problem is None else str(problem)


def examine(name: str, uuid: str, quick: bool) -> str | None:
    """The health check itself, in a process of its own: what is wrong, or None."""
    try:
        check_places()
    except InfrastructureError as error:
        return str(error)
    problem = _host_memory()
    if problem is None and name.startswith("cuda"):
        free_gib = gpu_state(uuid).get("free_gib", MIN_FREE_GIB)
        problem = gpu_problem(uuid) or _too_little(free_gib, "GPU memory")
    return problem or (None if quick else _kernel(name))


def orphaned_workers() -> list[int]:
    """Fork servers of passagent whose parent is gone: init (or a user's systemd) adopted them."""
    pids = []
    for entry in Path("/proc").iterdir():
        is_ours = entry.name.isdigit() and _FORK_SERVER in _read(entry / "cmdline").split("\0")
        if is_ours and _adopts(_parent(int(entry.name))):
            pids.append(int(entry.name))
    return pids


def _adopts(pid: int) -> bool:
    """Tell whether the process adopts orphans. In a container process 1 may own workers."""
    if pid == 1:
        try:
            return not Path(os.readlink("/proc/1/exe")).name.startswith("python")
        except OSError:
            return True  # another user's
    return _read(Path(f"/proc/{pid}/comm")).strip() == "systemd"


def _parent(pid: int) -> int:
    """The parent's pid; 0 if the process is gone."""
    after_name = _read(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()
    return int(after_name[1]) if len(after_name) > 1 else 0


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _host_memory() -> str | None:
    for line in _read(Path("/proc/meminfo")).splitlines():
        if line.startswith("MemAvailable:"):
            return _too_little(int(line.split()[1]) / 2**20, "memory")
    return None


def _too_little(free_gib: float, what: str) -> str | None:
    if free_gib >= MIN_FREE_GIB:
        return None
    return f"{free_gib:.2f} GiB of {what} free, at least {MIN_FREE_GIB:g} are needed"


def _is_foreign(pid: int) -> bool:
    """Tell whether the process is here and is neither an ancestor nor a descendant of this one."""
    return Path(f"/proc/{pid}").exists() and pid not in _line(os.getpid()) and os.getpid() not in _line(pid)


def _line(pid: int) -> list[int]:
    """The process, its parent, and so on."""
    line = [pid]
    while line[-1] > 1:
        line.append(_parent(line[-1]))
    return line


@functools.cache
def _uuid(device: str) -> str:
    return find_device(device).uuid


def _kernel(name: str) -> str | None:
    """A problem if a kernel on the device does not give the right sum."""
    import torch

    n = 1 << 20
    try:
        odd = torch.arange(n, dtype=torch.float64, device=name) * 2 + 1
        total = int(odd.sum().item())
    except (RuntimeError, AssertionError) as error:
        return f"a kernel on {name} failed: {str(error).strip().splitlines()[0][:300]}"
    return None if total == n * n else f"a kernel on {name} gave {total}, right is {n * n}"


def main() -> None:
    """`python -m passagent.evaluator.hardware.health NAME UUID [quick]`: one JSON object on stdout."""
    name, uuid, *rest = sys.argv[1:]
    print(json.dumps({"problem": examine(name, uuid, bool(rest))}))


if __name__ == "__main__":
    main()
