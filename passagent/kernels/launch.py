"""The way from a call in Python to a kernel: launch.c, built once and loaded once, for all kernels.

A `Launch` holds the variants of a kernel: loaded machine code, each for arguments of certain kinds. A call
looks for its variant in C; where there is none yet, Python is asked to make one.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from passagent.errors import PassagentError
from passagent.kernels import driver, toolchain
from passagent.kernels.layout import LONGEST, Like, Order, strides

SOURCE = Path(__file__).with_name("launch.c")
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
"""C types of parameters, in the order of `enum target` of launch.c, which passes no CUtensorMap."""
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
CONSTANT, OUTPUT = -1, -2
MOST = 64
"""Arguments of a launch, at most (MOST of launch.c)."""


class Sizes(NamedTuple):
    """The sizes of a launch."""

    grid: tuple[int, int, int] = (1, 1, 1)
    block: tuple[int, int, int] = (1, 1, 1)
    shared: int = 0
    """Shared memory, bytes."""


class Parameter(NamedTuple):
    """The value of a kernel's parameter of `type` (of TYPES).

    `source`: the position of an argument; CONSTANT; or OUTPUT - k for output k.
    """

    type: str
    source: int = CONSTANT
    constant: int | float = 0


def build(source: Path = SOURCE) -> Path:
    """The shared object of an extension in C that includes host.h, built unless it is cached."""
    texts = {name.name: name.read_text() for name in (source, _HEADER)}

    def compile_c(scratch: Path) -> Path:
        for name, text in texts.items():
            (scratch / name).write_text(text)
        command = [toolchain.compiler(), "-x", "c", "-O2", "-shared", "-fPIC", "-s", source.name]
        toolchain.run([*command, "-o", "extension.so"], "the launcher", scratch)
        return scratch / "extension.so"

    return toolchain.built(source.stem, ".so", [*texts.values(), toolchain.identity()], compile_c)


class Launch:
    """The kernel `name`; `function(*args)` makes outputs, launches on the current stream and returns them.

    Arguments are tensors, ints, floats, bools and None. Variants differ by the arguments' types and devices,
    those of a `planned` launch also by shapes, contiguity (in the `orders` of the first arguments), alignment
    to 16 bytes and the values of numbers. `other(*args)` is called with arguments that no variant takes: it
    adds one and returns True, or what it returns is the call's result.
    """

    def __init__(
        self,
        name: str,
        other: Callable[..., Any],
        planned: bool = False,
        cpu: bool = False,
        orders: Sequence[Order] = (),
    ) -> None:
        self._name, self._cpu, self._library = name, cpu, library()
        flat = b"".join(bytes([len(order), *order]).ljust(LONGEST + 1, b"\0") for order in orders[:MOST])
        count = min(len(orders), MOST)
        self._state = self._library.launch_new(name.encode(), other, cpu, planned, flat, count)
        self.function: Callable[..., Any] = self._library.launch_function_of(self._state)

    def add(
        self,
        args: Sequence[Any],
        function: int,
        sizes: Sizes,
        parameters: Sequence[Parameter],
        outputs: Sequence[Like] = (),
    ) -> bool:
        """Have arguments such as `args` launch the CUfunction. True; TypeError if no kernel takes them.

        Of a launch on the `cpu` the function is the address of a C function of one argument,
        the array of pointers to the parameters.
        """
        if not self._cpu:
            tell_cuda(self._library)
        objects = (ctypes.py_object * len(args))(*args)
        passed = (_Parameter * len(parameters))()
        for slot, (ctype, source, constant) in zip(passed, parameters, strict=True):
            slot.target, slot.source = list(TYPES).index(ctype), source
            value = TYPES[ctype](constant)
            ctypes.memmove(ctypes.byref(slot), ctypes.byref(value), ctypes.sizeof(value))
        flat_sizes = (ctypes.c_uint32 * SIZES)(*sizes.grid, *sizes.block, sizes.shared, 1)
        flat: list[Any] = []
        for like in outputs:
            flat += [like.shape, strides(like.shape, like.order), like.dtype]
        made_of = (ctypes.py_object * len(flat))(*flat)
        added = (
            self._state,
            objects,
            len(args),
            function,
            flat_sizes,
            passed,
            len(passed),
            made_of,
            len(outputs),
        )
        if not self._library.launch_add(*added):
            raise TypeError(
                f"{self._name}: an int beyond 64 bits, more than {MOST} arguments, or too many dimensions"
            )
        return True


def size(parameter: Parameter) -> int:
    """Bytes that a kernel is given for the parameter."""
    return ctypes.sizeof(TYPES[parameter.type])


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
        for name, function in driver.functions().items():
            setattr(host, name, ctypes.cast(function, ctypes.c_void_p).value)


@functools.cache
def library() -> ctypes.PyDLL:
    """Load launch.c; it gets CUDA's functions when there is something to launch.

    Raises PassagentError for a torch without DLPack's C exchange.
    """
    loaded = load(build())
    pointer, object_, u32 = ctypes.c_void_p, ctypes.py_object, ctypes.c_uint32
    loaded.launch_new.argtypes = [ctypes.c_char_p, object_, ctypes.c_int, ctypes.c_int, ctypes.c_char_p, u32]
    loaded.launch_new.restype = loaded.launch_function_of.restype = object_
    loaded.launch_function_of.argtypes = [object_]
    loaded.launch_add.argtypes = [object_, ctypes.POINTER(object_), ctypes.c_ssize_t, pointer]
    loaded.launch_add.argtypes += [ctypes.POINTER(u32), ctypes.POINTER(_Parameter), u32]
    loaded.launch_add.argtypes += [ctypes.POINTER(object_), u32]
    return loaded


class _Host(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("torch", "tensor_type", "launch", "launch_clusters")),
        *((name, ctypes.c_void_p) for name in ("error_text", "fill", "fill_words", "copy", "encode")),
        ("empty", ctypes.c_void_p * 2),
    )


class _Parameter(ctypes.Structure):
    _fields_ = (("constant", ctypes.c_uint64), ("source", ctypes.c_int32), ("target", ctypes.c_int32))


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


def check_arguments(name: str, args: Sequence[Any]) -> None:
    """Raise TypeError for an argument that no kernel takes, or a tensor that is not on the current device."""
    device = driver.current_device()
    for position, argument in enumerate(args):
        if isinstance(argument, torch.Tensor):
            if argument.get_device() != device:
                what = f"argument {position} is a {argument.dtype} tensor on {argument.device}"
                raise TypeError(f"{name}: {what}; a kernel takes tensors on the current CUDA device")
        elif argument is not None and type(argument) not in (int, float, bool):
            what = f"argument {position} is a {type(argument).__name__}"
            raise TypeError(f"{name}: {what}; pass tensors, ints, floats or bools")
