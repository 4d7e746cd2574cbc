"""`cpp_kernel`: a C++ function as a kernel on CPU tensors, compiled in about a second, no torch headers."""

from __future__ import annotations

import ctypes
import inspect
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from passagent.kernels import build as _build
from passagent.kernels import launch, layout
from passagent.kernels.launch import OUTPUT, Parameter, Sizes
from passagent.kernels.layout import Like, Order

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

Plan = Callable[..., tuple[dict[str, Any], dict[str, int | float | bool]]]

_Argument = torch.Tensor | int | float | bool


def cpp_kernel(
    source: str, name: str, plan: Plan | None = None, order: Mapping[str, Iterable[int]] | None = None
) -> Callable[..., Any]:
    """The C++ function `name` of `source` as a kernel, compiled for the types of a call on first use.

    Call it with CPU tensors, ints, floats and bools: a tensor arrives as a pointer to its first element
    (`float*`, `float16*`, `bfloat16*`, `int64_t*`, ... by dtype), an int as `int64_t`, a float as `double`.
    The function may be a template. It returns nothing; it writes into the tensors it is given. Strides are
    the caller's to pass. Threads: OpenMP, the pool that torch uses.

    With a `plan` the call allocates the outputs and returns them, and sizes are computed once for each shape:

        def _plan(x, y):
            return {"out": x}, {"n": x.numel()}

        add = cpp_kernel(\"\"\"... void add(const float* x, const float* y, float* out, int64_t n) ...\"\"\",
                         "add", _plan)
        out = add(x, y)

    The plan is called with what it may know of the arguments: shape and dtype of a tensor, a number as it is;
    once for each combination of those. It returns the outputs by name (shaped, typed and laid out like an
    input, or as (shape, dtype)) and numbers by name. The C++ function is given the call's arguments, then the
    outputs, then the numbers. It sees contiguous memory: of a tensor that is not contiguous it is given a
    copy. `order` says of which parameters of the plan the dimensions lie in another order, as in
    `triton_kernel`.

    Raises KernelBuildError if it does not compile, KernelRefused if it asks for more than a kernel may,
    TypeError for an argument of another kind or a tensor on another device.
    """
    return _CppKernel(source, name, plan, order).function


class _CppKernel:
    """A kernel and the variants of it that are loaded."""

    def __init__(
        self, source: str, name: str, plan: Plan | None, order: Mapping[str, Iterable[int]] | None
    ) -> None:
        self.source, self.name, self.plan = source, name, plan
        parameters = list(inspect.signature(plan).parameters) if plan is not None and order else []
        self._orders: list[Order] = layout.orders(name, order, parameters)
        self._loaded: dict[tuple[str, ...], Any] = {}
        planned = plan is not None
        self._launch = launch.Launch(name, self._other, planned, cpu=True, orders=self._orders)
        self.function: Callable[..., Any] = self._launch.function

    def _other(self, *args: _Argument) -> Any:
        """Make the variant for arguments such as these (True), or do the call on contiguous copies."""
        where = "a C++ kernel takes tensors in the host's memory"
        types = argument_types(self.name, args, lambda tensor: tensor.is_cpu, where)
        passed = ["void*" if ctype.endswith("*") else ctype for ctype in types]
        parameters = [Parameter(ctype, position) for position, ctype in enumerate(passed)]
        likes: list[Like] = []
        if self.plan is not None:
            orders = self._orders or [()] * len(args)
            copied = list(map(layout.laid, args, orders))
            if not all(map(operator.is_, args, copied)):
                return layout.row_major(self.function(*copied))
            outputs, numbers = self.plan(*map(layout.seen, args, orders))
            likes = [Like(*like) for like in outputs.values()]
            for k, (key, like) in enumerate(zip(outputs, likes, strict=True)):
                types.append(_pointer(f"{self.name}: output {key}", like.dtype))
                parameters.append(Parameter("void*", OUTPUT - k))
            for key, number in numbers.items():
                if type(number) not in SCALARS:
                    raise TypeError(f"{self.name}: {key} of its plan is a {type(number).__name__}, no number")
                types.append(SCALARS[type(number)][0])
                parameters.append(Parameter(types[-1], constant=number))
        function = ctypes.cast(self._load(tuple(types)), ctypes.c_void_p).value or 0
        return self._launch.add(args, function, Sizes(), parameters, likes)

    def _load(self, types: tuple[str, ...]) -> Any:
        """The kernel's entry for these types, built and loaded once."""
        if types not in self._loaded:
            path = _build.build(self.source, self.name, _build.Signature(types))
            self._loaded[types] = ctypes.PyDLL(str(path)).passagent_entry
        return self._loaded[types]


def argument_types(
    name: str, args: Sequence[Any], is_here: Callable[[torch.Tensor], bool], where: str
) -> list[str]:
    """The C types that the arguments of kernel `name` arrive as, in C++ as in CUDA C++.

    Raises TypeError for one that C has no type for, or a tensor that is not here; `where` says what is.
    """
    types = []
    for position, argument in enumerate(args):
        what = f"{name}: argument {position}"
        if isinstance(argument, torch.Tensor):
            if not is_here(argument):
                raise TypeError(f"{what} is a {argument.dtype} tensor on {argument.device}; {where}")
            types.append(_pointer(what, argument.dtype))
        elif type(argument) in SCALARS:
            types.append(SCALARS[type(argument)][0])
        else:
            raise TypeError(f"{what} is a {type(argument).__name__}; pass tensors, ints, floats or bools")
    return types


def _pointer(what: str, dtype: torch.dtype) -> str:
    if dtype not in CTYPES:
        raise TypeError(f"{what} is a {dtype} tensor, for which C has no type; pass a view of another dtype")
    return CTYPES[dtype]
