"""`cpp_kernel`: a C++ function as a kernel on CPU tensors, compiled in about a second, no torch headers."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path

import torch

from passagent.kernels import build as _build

CTYPES = {
    torch.float32: "float*",
    torch.float64: "double*",
    torch.float16: "float16*",
    torch.bfloat16: "bfloat16*",
    torch.int64: "int64_t*",
    torch.int32: "int32_t*",
    torch.int16: "int16_t*",
    torch.int8: "int8_t*",
    torch.uint8: "uint8_t*",
    torch.bool: "bool*",
}
SCALARS = {
    int: ("int64_t", ctypes.c_int64),
    float: ("double", ctypes.c_double),
    bool: ("bool", ctypes.c_bool),
}

Builder = Callable[[str, str, _build.Signature], Path]
_builder: list[Builder] = [_build.build]
"""Who compiles: `build.build` here; in a candidate's process the referee, asked over the channel."""


class CppKernel:
    """A C++ function `name` of `source`, compiled for the argument types of each call on first use.

    Call it with CPU tensors, ints, floats and bools: a tensor arrives as a pointer to its first element
    (`float*`, `float16*`, `bfloat16*`, `int64_t*`, ... by dtype), an int as `int64_t`, a float as `double`.
    The function may be a template. It returns nothing; it writes into the tensors it is given. Strides are
    the caller's to pass. Threads: OpenMP, the pool that torch uses.

    To see what kernels are given, replace `CppKernel.__call__` for a while: it is looked up on the class at
    each call, so that nothing is paid while nobody looks.

    Raises KernelBuildError if it does not compile, KernelRefused if it asks for more than a kernel may,
    TypeError for an argument of another kind or a tensor on another device.
    """

    def __init__(self, source: str, name: str) -> None:
        self.source, self.name = source, name
        self._entries: dict[tuple[object, ...], tuple[Callable[..., None], tuple[bool, ...]]] = {}

    def __call__(self, *args: torch.Tensor | int | float | bool) -> None:
        key = tuple([a.dtype if isinstance(a, torch.Tensor) else type(a) for a in args])
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = self._load(args)
        function, is_tensor = entry
        function(*[a.data_ptr() if t else a for a, t in zip(args, is_tensor, strict=True)])  # type: ignore[union-attr]

    def _load(
        self, args: tuple[torch.Tensor | int | float | bool, ...]
    ) -> tuple[Callable[..., None], tuple[bool, ...]]:
        types, argtypes = [], []
        for position, argument in enumerate(args):
            if isinstance(argument, torch.Tensor):
                if not argument.is_cpu or argument.dtype not in CTYPES:
                    what = f"argument {position} is a {argument.dtype} tensor on {argument.device}"
                    raise TypeError(f"{self.name}: {what}; cpp_kernel takes CPU tensors")
                types.append(CTYPES[argument.dtype])
                argtypes.append(ctypes.c_void_p)
            elif type(argument) in SCALARS:
                ctype, converter = SCALARS[type(argument)]
                types.append(ctype)
                argtypes.append(converter)  # type: ignore[arg-type]
            else:
                what = f"argument {position} is a {type(argument).__name__}"
                raise TypeError(f"{self.name}: {what}; pass tensors, ints, floats or bools")
        path = _builder[0](self.source, self.name, _build.Signature(tuple(types)))
        function = ctypes.PyDLL(str(path)).passagent_entry
        function.argtypes, function.restype = argtypes, None
        return function, tuple(isinstance(a, torch.Tensor) for a in args)


def cpp_kernel(source: str, name: str) -> CppKernel:
    """The C++ function `name` of `source` as a callable kernel; see CppKernel for how arguments arrive."""
    return CppKernel(source, name)
