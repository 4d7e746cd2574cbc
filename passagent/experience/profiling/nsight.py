"""NVIDIA's Nsight Compute: run a program under `ncu`, and read its report with NVIDIA's own `ncu-report`.

A program marks what is to be profiled with cudaProfilerStart and cudaProfilerStop. ncu replays each kernel
for every group of counters, so no time of such a run is a measurement.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from passagent.errors import PassagentError
from passagent.experience.profiling.profile_record import KernelProfile

BUDGET_S = 60.0
"""For one run under ncu, s."""
MOST_LAUNCHES = 24
"""Launches that are profiled; each is replayed for every group of counters."""
SECTIONS = (
    "SpeedOfLight", "ComputeWorkloadAnalysis", "MemoryWorkloadAnalysis", "MemoryWorkloadAnalysis_Tables",
    "WarpStateStats", "Occupancy", "LaunchStats",
)  # fmt: skip
METRICS: dict[str, str] = {
    "duration_ns": r"gpu__time_duration\.sum",
    "compute_percent": r"sm__throughput\.avg\.pct_of_peak_sustained_elapsed",
    "memory_percent": r"gpu__compute_memory_throughput\.avg\.pct_of_peak_sustained_elapsed",
    "tensor_percent": r"sm__(inst_executed_)?pipe_tensor\w*\.(avg|sum)\.pct_of_peak_sustained_\w+",
    "occupancy_percent": r"sm__warps_active\.avg\.pct_of_peak_sustained_active",
    "grid": r"launch__grid_size",
    "block": r"launch__block_size",
    "waves": r"launch__waves_per_multiprocessor",
    "registers": r"launch__registers_per_thread",
    "threads_an_instruction": r"smsp__thread_inst_executed_per_inst_executed\.ratio",
    "global_load_requests": r"l1tex__t_requests_pipe_lsu_mem_global_op_ld\.sum",
    "global_store_requests": r"l1tex__t_requests_pipe_lsu_mem_global_op_st\.sum",
    "local_load_sectors": r"l1tex__t_sectors_pipe_lsu_mem_local_op_ld\.sum",
    "local_store_sectors": r"l1tex__t_sectors_pipe_lsu_mem_local_op_st\.sum",
    "global_load_sectors": r"l1tex__t_sectors_pipe_lsu_mem_global_op_ld\.sum",
    "global_store_sectors": r"l1tex__t_sectors_pipe_lsu_mem_global_op_st\.sum",
}
"""Our names, and regular expressions of NVIDIA's. These differ between GPUs; of several the largest."""
_NO_COUNTERS = "ERR_NVGPUCTRPERM"


class ProfilerUnavailable(PassagentError):
    """Counters cannot be read here, in a line that says what to do."""


def find_ncu() -> str:
    """The path of `ncu`. Raises ProfilerUnavailable."""
    toolkit = Path(os.environ.get("CUDA_HOME") or "/usr/local/cuda") / "bin" / "ncu"
    path = shutil.which("ncu") or (str(toolkit) if toolkit.exists() else None)
    if path is None:
        raise ProfilerUnavailable("ncu is not installed: no hardware counters; install NVIDIA Nsight Compute")
    return path


def reader() -> ModuleType:
    """NVIDIA's reader of reports. Raises ProfilerUnavailable."""
    try:
        import ncu_report
    except ImportError as error:
        message = "ncu-report is not installed: no hardware counters; pip install 'passagent[profile]'"
        raise ProfilerUnavailable(message) from error
    module: ModuleType = ncu_report
    return module


def collect(
    command: Sequence[str],
    report: Path,
    launches: int = MOST_LAUNCHES,
    budget_s: float = BUDGET_S,
    environment: dict[str, str] | None = None,
) -> None:
    """Run `command` under ncu; the counters of its marked launches are in `report` (.ncu-rep) then.

    Raises ProfilerUnavailable where ncu is absent, forbidden, late or fails; what it started is ended.
    """
    sections = [word for name in SECTIONS for word in ("--section", name)]
    line = [
        find_ncu(), "--target-processes", "all", "--profile-from-start", "off", "--replay-mode", "kernel",
        "--clock-control", "none", "--cache-control", "none", "--import-source", "no",
        "--launch-count", str(launches), *sections, "--force-overwrite", "--export", str(report), *command,
    ]  # fmt: skip
    process = subprocess.Popen(
        line,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=budget_s)
    except BaseException as error:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if isinstance(error, subprocess.TimeoutExpired):
            raise ProfilerUnavailable(f"ncu took more than {budget_s:g} s; no hardware counters") from error
        raise
    if _NO_COUNTERS in output:
        raise ProfilerUnavailable(
            f"ncu may not read hardware counters ({_NO_COUNTERS}): load the driver's module with "
            "NVreg_RestrictProfilingToAdminUsers=0, or run as root"
        )
    if "No kernels were profiled" in output:
        raise ProfilerUnavailable("ncu saw no kernel: what was called launches none, or copies by the driver")
    if process.returncode != 0 or not report.exists():
        raise ProfilerUnavailable(f"ncu failed (exit code {process.returncode}): {_last(output)}")


def _last(output: str) -> str:
    """The line that tells most: ncu's first error, else the last one."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("==ERROR==")]
    return (errors or lines or ["it said nothing"])[0 if errors else -1][:300]


def read_report(report: Path) -> list[KernelProfile]:
    """The launches of a report in order. Raises ProfilerUnavailable for one that cannot be read."""
    module = reader()
    try:
        context = module.load_report(str(report))
        ranges = [context.range_by_idx(number) for number in range(context.num_ranges())]
        return [_kernel(of.action_by_idx(place)) for of in ranges for place in range(of.num_actions())]
    except (OSError, RuntimeError, ValueError) as error:
        raise ProfilerUnavailable(f"{report.name}: is no report that ncu-report reads: {error}") from error


def _kernel(action: Any) -> KernelProfile:
    names = list(action.metric_names())
    metrics = {}
    for metric, pattern in METRICS.items():
        values = [_value(action, name) for name in names if re.fullmatch(pattern, name)]
        numbers = [value for value in values if value is not None]
        if numbers:
            metrics[metric] = max(numbers)
    duration, registers = metrics.pop("duration_ns", None), metrics.pop("registers", None)
    return KernelProfile(
        name=str(action.name()),
        duration_us=None if duration is None else duration / 1e3,
        registers=None if registers is None else int(registers),
        metrics=metrics,
    )


def _value(action: Any, name: str) -> float | None:
    metric = action.metric_by_name(name)
    if metric is None or not metric.has_value():
        return None
    value = float(metric.as_double())
    unit = str(metric.unit())
    return value * {"us": 1e3, "usecond": 1e3, "ms": 1e6, "msecond": 1e6}.get(unit, 1.0)
