"""The few functions of CUDA's driver that kernels need, through ctypes: load, ask, say what went wrong."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import Any

import torch

from passagent.errors import PassagentError

_SHARED_WITHOUT_ASKING = 48 * 1024
_MAX_DYNAMIC_SHARED = 8
_NON_PORTABLE_CLUSTER, _PORTABLE = 14, 8


FUNCTIONS = {
    "launch": "cuLaunchKernel",
    "launch_clusters": "cuLaunchKernelEx",
    "error_text": "cuGetErrorString",
    "fill": "cuMemsetD8Async",
    "fill_words": "cuMemsetD32Async",
    "copy": "cuMemcpyDtoDAsync_v2",
    "encode": "cuTensorMapEncodeTiled",
}
"""Functions of the driver by their names in host.h, in its order."""


def addresses() -> dict[str, int | None]:
    """The addresses of FUNCTIONS."""
    functions = {name: getattr(_driver(), symbol) for name, symbol in FUNCTIONS.items()}
    return {name: ctypes.cast(function, ctypes.c_void_p).value for name, function in functions.items()}


def device() -> torch.device:
    """The current device."""
    return torch.device("cuda", current_device())


def current_device() -> int:
    """torch's current CUDA device. Raises PassagentError where torch sees none."""
    try:
        return int(torch._C._cuda_getDevice())
    except (AttributeError, RuntimeError) as error:
        raise PassagentError("a kernel needs a CUDA device, and torch sees none; use cpp_kernel") from error


def architecture() -> str:
    """The architecture of the current device, such as sm_90."""
    major, minor = torch.cuda.get_device_capability()
    return f"sm_{major}{minor}"


def load(image: bytes, entry: str) -> int:
    """The CUfunction of `entry` in a cubin, in the current device's context; it stays loaded."""
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    torch.cuda.current_stream().synchronize()  # makes torch's context the current one
    _check("loading a kernel", _driver().cuModuleLoadData(ctypes.byref(module), image))
    _check(
        "loading a kernel",
        _driver().cuModuleGetFunction(ctypes.byref(function), module, entry.encode()),
    )
    return int(function.value or 0)


def allow_shared(name: str, function: int, size: int) -> None:
    """Let a kernel have `size` bytes of dynamic shared memory. Raises RuntimeError if it cannot."""
    if size > _SHARED_WITHOUT_ASKING:
        code = _driver().cuFuncSetAttribute(ctypes.c_void_p(function), _MAX_DYNAMIC_SHARED, size)
        _check(f"{name} with {size} bytes of shared memory", code)


def allow_clusters(name: str, function: int, blocks: int) -> None:
    """Let a kernel run in clusters of so many blocks. Raises RuntimeError if it cannot."""
    if blocks > _PORTABLE:
        code = _driver().cuFuncSetAttribute(ctypes.c_void_p(function), _NON_PORTABLE_CLUSTER, 1)
        _check(f"{name} in clusters of {blocks} blocks", code)


def launch(name: str, function: int, sizes: Sequence[int], cells: Sequence[Any]) -> None:
    """Launch a kernel on the current stream with the parameters in `cells`, values of ctypes.

    `sizes`: grid (3), block (3) and shared memory. Raises RuntimeError in CUDA's words.
    """
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    pointers = (ctypes.c_void_p * len(cells))(*map(ctypes.addressof, cells))
    code = _driver().cuLaunchKernel(
        ctypes.c_void_p(function), *map(ctypes.c_uint, sizes), stream, pointers, None
    )
    _check(f"{name}[{[*sizes[:3]]}, {[*sizes[3:6]]}]", code)


def version() -> int:
    """The version of CUDA that the driver supports, such as 13000."""
    number = ctypes.c_int()
    _check("asking for the driver's version", _driver().cuDriverGetVersion(ctypes.byref(number)))
    return number.value


def parameter_sizes(function: int) -> list[int] | None:
    """Bytes of each parameter of a loaded kernel; None where the driver does not tell (before CUDA 12.4)."""
    ask = getattr(_driver(), "cuFuncGetParamInfo", None)
    if ask is None:
        return None
    sizes: list[int] = []
    offset, size = ctypes.c_size_t(), ctypes.c_size_t()
    where = ctypes.byref(offset), ctypes.byref(size)
    while ask(ctypes.c_void_p(function), ctypes.c_size_t(len(sizes)), *where) == 0:
        sizes.append(size.value)
    return sizes


@functools.cache
def _driver() -> ctypes.CDLL:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise PassagentError("a kernel needs a CUDA device and its driver; use cpp_kernel") from error


def _check(what: str, code: int) -> None:
    if code:
        text = ctypes.c_char_p()
        _driver().cuGetErrorString(code, ctypes.byref(text))
        raise RuntimeError(f"{what}: CUDA error {code}: {(text.value or b'unknown').decode()}")
