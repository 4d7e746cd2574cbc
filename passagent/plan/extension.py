"""replay.c, built and loaded, and its structures."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from passagent.errors import PassagentError
from passagent.kernels import driver, toolchain

LAUNCH, FILL, COPY, ADDRESS, CALL = range(5)
"""`enum step_kind`."""
NOWHERE = -1
SIZES = 8
"""Numbers of a launch in host.h: grid, block, shared memory, blocks of a cluster."""
_SOURCES = (Path(__file__).with_name("replay.c"), Path(driver.__file__).with_name("host.h"))

_guards: Any = torch._C._dynamo.guards
EMPTY: dict[str, Callable[..., torch.Tensor]] = {
    "cpu": _guards._empty_strided_cpu,
    "cuda": _guards._empty_strided_cuda,
}
"""For each type of device the function of (size, stride, dtype) that allocates on the current one.

It goes past torch's dispatcher, as Inductor's code does. In the order of `empty` of host.h.
"""


def build() -> Path:
    """The shared object of replay.c, built unless it is cached."""
    texts = {path.name: path.read_text() for path in _SOURCES}

    def compile_c(scratch: Path) -> Path:
        for name, text in texts.items():
            (scratch / name).write_text(text)
        command = [toolchain.compiler(), "-x", "c", "-O2", "-shared", "-fPIC", "-s", "replay.c"]
        toolchain.run([*command, "-o", "extension.so"], "the launcher", scratch)
        return scratch / "extension.so"

    return toolchain.built("replay", ".so", [*texts.values(), toolchain.identity()], compile_c)


_builder: list[Callable[[], Path]] = [build]
"""Where the shared object comes from; a process that can build nothing puts another function here."""


@functools.cache
def library() -> ctypes.PyDLL:
    """Load replay.c and hand it torch's functions.

    Raises PassagentError for a torch without DLPack's C exchange.
    """
    exchange = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
    if exchange is None:
        raise PassagentError("kernels are launched through DLPack's C exchange; install torch 2.10 or newer")
    loaded = ctypes.PyDLL(str(_builder[0]()))
    capsule = ctypes.pythonapi.PyCapsule_GetPointer
    capsule.argtypes, capsule.restype = [ctypes.py_object, ctypes.c_char_p], ctypes.c_void_p
    host = _Host.in_dll(loaded, "host")
    host.torch, host.tensor_type = capsule(exchange, b"dlpack_exchange_api"), id(torch.Tensor)
    host.empty[:] = [id(function) for function in EMPTY.values()]
    loaded.replay_new.argtypes, loaded.replay_new.restype = [ctypes.c_void_p], ctypes.py_object
    loaded.dtype_of.argtypes = [ctypes.py_object, ctypes.c_void_p, ctypes.c_void_p]
    return loaded


def tell_cuda(loaded: ctypes.PyDLL) -> None:
    """Tell replay.c of CUDA, once. Raises PassagentError where there is none."""
    host = _Host.in_dll(loaded, "host")
    if not host.launch:
        for name, address in driver.addresses().items():
            setattr(host, name, address)


def array(kind: Any, items: Sequence[Any]) -> Any:
    """A C array, which has a place even if it is empty."""
    return (kind * max(len(items), 1))(*items)


def _fields(kind: Any, names: str) -> tuple[tuple[str, Any], ...]:
    return tuple((name, kind) for name in names.split())


class _Host(ctypes.Structure):
    _fields_ = (
        *_fields(ctypes.c_void_p, " ".join(("torch", "tensor_type", *driver.FUNCTIONS))),
        ("empty", ctypes.c_void_p * 2),
    )


class Cell(ctypes.Structure):
    """struct cell: `value`, plus where the tensor of a slot lies if `slot` is not negative. Bytes.

    `map`: the number of a tensor map with this address, which a kernel is given in its place.
    """

    _fields_ = (("value", ctypes.c_uint64), *_fields(ctypes.c_int32, "slot map"))

    def __init__(self, value: int, slot: int = NOWHERE) -> None:
        super().__init__(value, slot, NOWHERE)  # negative ones wrap around


class Map(ctypes.Structure):
    """struct map."""

    _fields_ = (
        *_fields(ctypes.c_int32, "kind rank swizzle fill small"),
        ("box", ctypes.c_uint32 * 5),
        *_fields(ctypes.c_uint64 * 5, "sizes strides"),
    )


class Object(ctypes.Structure):
    """struct object."""

    _fields_ = (*_fields(ctypes.c_void_p, "fixed view"), *_fields(ctypes.c_int32, "slot unused"))


class Step(ctypes.Structure):
    """struct step."""

    _fields_ = (
        ("kind", ctypes.c_int32),
        *_fields(ctypes.c_uint32, "first count"),
        ("sizes", ctypes.c_uint32 * SIZES),
        ("function", ctypes.c_void_p),
        *_fields(ctypes.c_uint64, "size pattern"),
        ("name", ctypes.c_char_p),
    )


class Input(ctypes.Structure):
    """struct input."""

    _fields_ = (
        ("equal", ctypes.c_void_p),
        *_fields(ctypes.c_int32, "kind device ndim same slot"),
        *_fields(ctypes.c_uint8, "code bits"),
        ("lanes", ctypes.c_uint16),
        ("alignment", ctypes.c_uint32),
        *_fields(ctypes.c_void_p, "shape stride"),
    )


class Program(ctypes.Structure):
    """struct program."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
        *_fields(ctypes.c_void_p, "explain look empty keep"),
        *_fields(ctypes.c_int32, "cpu device running many"),
        *_fields(ctypes.c_uint32, "inputs slots outputs computed cells steps objects results maps"),
        *_fields(ctypes.c_void_p, "input made cell object step map at values parameters tensor encoded"),
    )
