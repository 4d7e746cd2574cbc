"""Parts of a launch: C types of parameters, sizes of a grid, and extensions in C that include host.h."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

from passagent.errors import PassagentError
from passagent.kernels import driver, toolchain

_HEADER = Path(__file__).with_name("host.h")
TYPES: dict[str, type] = {
    "void*": ctypes.c_void_p,
    "int8_t": ctypes.c_int8,
    "int16_t": ctypes.c_int16,
    "int32_t": ctypes.c_int32,
    "int64_t": ctypes.c_int64,
    "uint8_t": ctypes.c_uint8,
    "uint16_t": ctypes.c_uint16,
    "uint32_t": ctypes.c_uint32,
    "uint64_t": ctypes.c_uint64,
    "float": ctypes.c_float,
    "double": ctypes.c_double,
    "bool": ctypes.c_bool,
    "CUtensorMap": ctypes.c_uint64 * 16,
}
"""C types of a kernel's parameters."""
SIZES = 8
"""Numbers of a launch in host.h: grid, block, shared memory, blocks of a cluster."""

Shape = int | tuple[int, ...]


_guards: Any = torch._C._dynamo.guards
EMPTY: dict[str, Callable[..., torch.Tensor]] = {
    "cpu": _guards._empty_strided_cpu,
    "cuda": _guards._empty_strided_cuda,
}
"""For each type of device the function of (size, stride, dtype) that allocates on the current one.

It goes past torch's dispatcher, as Inductor's code does. In the order of `empty` of host.h.
"""


class Sizes(NamedTuple):
    """The sizes of a launch."""

    grid: tuple[int, int, int] = (1, 1, 1)
    block: tuple[int, int, int] = (1, 1, 1)
    shared: int = 0
    """Shared memory, bytes."""


def build(source: Path) -> Path:
    """The shared object of an extension in C that includes host.h, built unless it is cached."""
    texts = {name.name: name.read_text() for name in (source, _HEADER)}

    def compile_c(scratch: Path) -> Path:
        for name, text in texts.items():
            (scratch / name).write_text(text)
        command = [toolchain.compiler(), "-x", "c", "-O2", "-shared", "-fPIC", "-s", source.name]
        toolchain.run([*command, "-o", "extension.so"], "the launcher", scratch)
        return scratch / "extension.so"

    return toolchain.built(source.stem, ".so", [*texts.values(), toolchain.identity()], compile_c)


def load(path: Path) -> ctypes.PyDLL:
    """Load an extension that includes host.h and hand it torch's functions.

    Raises PassagentError for a torch without DLPack's C exchange.
    """
    exchange = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
    if exchange is None:
        raise PassagentError("kernels are launched through DLPack's C exchange; install torch 2.10 or newer")
    loaded = ctypes.PyDLL(str(path))
    capsule = ctypes.pythonapi.PyCapsule_GetPointer
    capsule.argtypes, capsule.restype = [ctypes.py_object, ctypes.c_char_p], ctypes.c_void_p
    host = _Host.in_dll(loaded, "host")
    host.torch, host.tensor_type = capsule(exchange, b"dlpack_exchange_api"), id(torch.Tensor)
    host.empty[:] = [id(function) for function in EMPTY.values()]
    return loaded


def tell_cuda(loaded: ctypes.PyDLL) -> None:
    """Tell an extension of CUDA, once. Raises PassagentError where there is none."""
    host = _Host.in_dll(loaded, "host")
    if not host.launch:
        for name, address in driver.addresses().items():
            setattr(host, name, address)


class _Host(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("torch", "tensor_type", *driver.FUNCTIONS)),
        ("empty", ctypes.c_void_p * 2),
    )


def three(name: str, part: Shape) -> tuple[int, int, int]:
    """A grid or block in three dimensions. Raises TypeError for what is none."""
    sizes = part if isinstance(part, tuple) else (part,)
    if not 1 <= len(sizes) <= 3 or not all(isinstance(n, int) and 0 <= n < 1 << 32 for n in sizes):
        raise TypeError(f"{name}: {part!r} is no grid or block; give an int or a tuple of up to three")
    return (*sizes, 1, 1)[:3]  # type: ignore[return-value]


def sizes(name: str, shape: Any) -> Sizes:
    """The sizes of `kernel[grid, block, shared]`. Raises TypeError."""
    if not isinstance(shape, tuple) or len(shape) not in (2, 3):
        raise TypeError(f"{name}: launch as kernel[grid, block](...)")
    shared = three(name, shape[2])[0] if shape[2:] else 0
    return Sizes(three(name, shape[0]), three(name, shape[1]), shared)
