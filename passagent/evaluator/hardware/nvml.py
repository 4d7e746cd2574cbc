"""Ask NVML about a GPU: its state, and its faults. Without NVML there is no answer."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

_REASONS = {
    "SwPowerCap": "power_cap",
    "SyncBoost": "sync_boost",
    "HwSlowdown": "hw_slowdown",
    "HwThermalSlowdown": "hw_thermal_slowdown",
    "HwPowerBrakeSlowdown": "hw_power_brake",
    "SwThermalSlowdown": "thermal_slowdown",
}
"""NVML's reasons for lower clocks (nvmlClocksThrottleReason...) that change a measurement."""
SICK_REASONS = {"hw_slowdown", "hw_thermal_slowdown", "hw_power_brake", "thermal_slowdown"}
"""Reasons that a healthy device does not show under load; a power cap it does."""


def gpu_problem(uuid: str) -> str | None:
    """Name the GPU's fault according to NVML; None where there is no NVML to ask."""
    if (nvml := _nvml()) is None:
        return None
    try:
        handle = _handle(nvml, uuid)
    except (nvml.NVMLError_NotFound, nvml.NVMLError_GpuIsLost) as error:
        return f"NVML does not see the GPU any more: {error}"
    except nvml.NVMLError:
        return None
    throttle = SICK_REASONS & set(_state(nvml, handle).get("throttle", []))
    if throttle:
        return f"the GPU is throttled: {', '.join(sorted(throttle))}"
    if _ask(nvml.nvmlDeviceGetRetiredPagesPendingStatus, handle):
        return "memory pages are to be retired: the GPU needs a reset"
    rows = _ask(nvml.nvmlDeviceGetRemappedRows, handle)  # corrected, uncorrected, pending, failed
    if rows and (rows[2] or rows[3]):
        return f"memory rows {'could not' if rows[3] else 'are to'} be remapped: the GPU needs a reset"
    return None


def gpu_state(uuid: str) -> dict[str, Any]:
    """sm_mhz, mem_mhz, temperature_c, power_w, throttle (names), pids (of its processes), free_gib; each
    only where the GPU and its driver tell."""
    nvml = _nvml()
    handle = nvml and _ask(_handle, nvml, uuid)
    return {} if handle is None else _state(nvml, handle)


def _state(nvml: Any, handle: Any) -> dict[str, Any]:
    power = _ask(nvml.nvmlDeviceGetPowerUsage, handle)
    reasons = _ask(nvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle)
    processes = _ask(nvml.nvmlDeviceGetComputeRunningProcesses, handle)
    memory = _ask(nvml.nvmlDeviceGetMemoryInfo, handle)
    state = {
        "sm_mhz": _ask(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_SM),
        "mem_mhz": _ask(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_MEM),
        "temperature_c": _ask(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU),
        "power_w": None if power is None else round(power / 1000, 1),
        "throttle": None if reasons is None else throttle_names(reasons),
        "pids": None if processes is None else [process.pid for process in processes],
        "free_gib": None if memory is None else round(memory.free / 2**30, 2),
    }
    return {key: value for key, value in state.items() if value is not None}


def driver_version() -> str | None:
    """The driver's version, where there is NVML to tell."""
    nvml = _nvml()
    version = nvml and _ask(nvml.nvmlSystemGetDriverVersion)
    return None if version is None else str(version)


def throttle_names(mask: int) -> list[str]:
    """The names of the reasons in NVML's bit mask that change a measurement."""
    import pynvml

    return [
        name for end, name in _REASONS.items() if mask & getattr(pynvml, f"nvmlClocksThrottleReason{end}")
    ]


def _ask(function: Callable[..., Any], *arguments: Any) -> Any:
    """Make an NVML call; None where this GPU or driver cannot tell."""
    import pynvml

    try:
        return function(*arguments)
    except pynvml.NVMLError:
        return None


@functools.cache
def _nvml() -> Any:
    """NVML's functions, imported when they are first needed; None where there is no NVML to ask."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml


def _handle(nvml: Any, uuid: str) -> Any:
    """NVML's handle of a GPU (or MIG instance) by the UUID that CUDA tells. Raises NVMLError."""
    try:
        return nvml.nvmlDeviceGetHandleByUUID(uuid)
    except nvml.NVMLError_NotFound:
        return nvml.nvmlDeviceGetHandleByUUID(uuid.replace("GPU-", "MIG-", 1))
