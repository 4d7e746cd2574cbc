"""Triton's interpreter for tests on a machine without a GPU, made to compute as the hardware does.

The interpreter cuts float32 off to bfloat16 where a GPU rounds to nearest even, computes on bfloat16 as if
its bits were an integer's, and knows no libdevice. Seen in triton 3.6 and 3.9. `replay_by_interpreting` has
replays run the recorded text of a kernel here.
"""

from __future__ import annotations

import functools
import importlib
import linecache
import os
import types
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import torch

from passagent.plan.arguments import (
    AddressArg,
    Argument,
    DescriptorArg,
    FunctionArg,
    TritonDtypeArg,
    TupleArg,
    ValueArg,
    leaves,
)
from passagent.plan.convert import named, python_value
from passagent.plan.model import Launch, Plan, TritonKernel
from passagent.plan.table import Run, Table

names_outside: dict[str, Any] = {}
"""The names that a kernel's text sees: those of the modules of the candidate that it is recorded of."""


def replay_by_interpreting() -> None:
    """Have replays in this process, which started with TRITON_INTERPRET=1, interpret Triton's kernels."""
    launch = Table._launch

    def interpreting(table: Table, step: Launch) -> None:
        kernel = table.plan.kernels[step.kernel]
        if isinstance(kernel, TritonKernel) and 0 not in step.grid:
            table._call(kernel.entry, *interpret(table.plan, step))
        else:
            launch(table, step)

    assert os.environ["TRITON_INTERPRET"] == "1"
    Table._launch = interpreting


def interpret(plan: Plan, step: Launch) -> tuple[Run, list[int]]:
    """A function that launches in the interpreter, and the values whose tensors it is given (for Replay)."""
    kernel = plan.kernels[step.kernel]
    assert isinstance(kernel, TritonKernel)
    all_leaves = (leaf for argument in step.args for leaf in leaves(argument))
    numbers = [
        *dict.fromkeys(
            leaf.value for leaf in all_leaves if isinstance(leaf, (ValueArg, AddressArg, DescriptorArg))
        )
    ]
    module = _module(step.kernel, kernel.text)
    names = [parameter.name for parameter in kernel.signature]

    def run(*tensors: torch.Tensor) -> None:
        by_number = dict(zip(numbers, tensors, strict=True))
        args = [_object(argument, by_number, module) for argument in step.args]
        getattr(module, kernel.entry)[step.grid](**dict(zip(names, args, strict=True)))

    return run, numbers


@functools.cache
def _module(digest: str, text: str) -> types.ModuleType:
    """The text as a module; Triton finds its lines in linecache."""
    file = f"<kernel {digest}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    module = types.ModuleType(f"kernel_{digest}")
    module.__file__ = file
    vars(module).update(names_outside)
    exec(compile(text, file, "exec"), vars(module))
    _name_by_module(vars(module))
    return module


def _name_by_module(names: dict[str, Any]) -> None:
    """Functions of triton.language by whatever name: the interpreter puts its own into the module alone."""
    import triton.language as tl

    def by_module(function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            return getattr(tl, function.__name__)(*args, **kwargs)

        return call

    builtins = {name: value for name, value in names.items() if callable(value) and tl.core.is_builtin(value)}
    names |= {name: by_module(value) for name, value in builtins.items()}
    names.setdefault("_language", tl)  # it looks for the module among the kernel's names


def _object(argument: Argument, by_number: dict[int, torch.Tensor], module: types.ModuleType) -> Any:
    """The kernel's value for an argument."""
    import triton.language as tl
    from triton.tools.tensor_descriptor import TensorDescriptor

    if isinstance(argument, ValueArg):
        return by_number[argument.value]
    if isinstance(argument, AddressArg):
        return by_number[argument.value].data_ptr() + argument.offset
    if isinstance(argument, DescriptorArg):
        shape, stride, block = map(list, (argument.shape, argument.stride, argument.block))
        return TensorDescriptor(by_number[argument.value], shape, stride, block, argument.padding)
    if isinstance(argument, TritonDtypeArg):
        return tl.dtype(argument.name)
    if isinstance(argument, FunctionArg):
        return getattr(module, argument.name)
    if isinstance(argument, TupleArg):
        return named(argument, [_object(item, by_number, module) for item in argument.items])
    return python_value(argument)


def round_as_hardware_does() -> None:
    """Replace the interpreter's cast to bfloat16 and its arithmetic on it, in this process."""
    import triton.language as tl
    from triton.runtime import interpreter

    original = interpreter._convert_float

    def convert(data: Any, source: Any, target: Any, rounding_mode: Any) -> Any:
        if source == tl.float32 and target == tl.bfloat16:
            return to_bfloat16_bits(np.asarray(data))
        if source == tl.bfloat16 and target == tl.float32:
            return from_bfloat16_bits(np.asarray(data))  # the same as the interpreter's, much faster
        return original(data, source, target, rounding_mode)

    interpreter._convert_float = convert
    builder, reducing = interpreter.InterpreterBuilder, interpreter.ReduceScanOpInterface
    for name in ("unary_op", "binary_op", "create_clampf", "create_fma", "create_dot"):
        setattr(builder, name, _through_float32(getattr(builder, name)))
    reducing.apply = _reduced_in_float32(reducing.apply)
    _give_libdevice()


def _through_float32(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method of the interpreter's builder, given float32 for bfloat16.

    Its result is a bfloat16 if its last operand was (a product's accumulator is not) and it is no comparison.
    """

    @functools.wraps(method)
    def widened(self: Any, *args: Any) -> Any:
        import triton.language as tl
        from triton.runtime.interpreter import TensorHandle

        half = [isinstance(a, TensorHandle) and a.dtype.scalar == tl.bfloat16 for a in args]
        if not any(half):
            return method(self, *args)
        wide = [self.cast_impl(a, tl.float32) if h else a for a, h in zip(args, half, strict=True)]
        result = method(self, *wide)
        last = [h for a, h in zip(args, half, strict=True) if isinstance(a, TensorHandle)][-1]
        return self.cast_impl(result, tl.bfloat16) if last and result.data.dtype == np.float32 else result

    return widened


def _reduced_in_float32(apply: Callable[..., Any]) -> Callable[..., Any]:
    """Reductions and scans, given float32 for bfloat16."""

    @functools.wraps(apply)
    def widened(self: Any, operands: Any) -> Any:
        import triton.language as tl

        if not isinstance(operands, tuple):
            return widened(self, (operands,))[0]
        half = [part.dtype == tl.bfloat16 for part in operands]
        if not any(half):
            return apply(self, operands)
        pairs = zip(operands, half, strict=True)
        results = apply(self, tuple(_cast(p, tl.float32, from_bfloat16_bits) if h else p for p, h in pairs))
        pairs = zip(results, half, strict=False)  # an extremum without its index is one result of two
        return tuple(_cast(p, tl.bfloat16, to_bfloat16_bits) if h else p for p, h in pairs)

    return widened


def _cast(value: Any, dtype: Any, by: Callable[..., Any]) -> Any:
    """A value of the interpreter's in another dtype; a scalar stays one."""
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle

    kind = tl.block_type(dtype, list(value.shape)) if value.type.is_block() else dtype
    return tl.tensor(TensorHandle(by(value.handle.data), dtype), kind)


_SAME = [
    "abs", "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "ceil", "copysign", "cos", "cosh",
    "erf", "erfc", "erfinv", "exp", "exp2", "expm1", "floor", "fmod", "hypot", "isinf", "isnan", "lgamma",
    "log", "log10", "log1p", "log2", "nextafter", "pow", "remainder", "rsqrt", "sin", "signbit", "sinh",
    "sqrt", "tan", "tanh", "trunc",
]  # fmt: skip
"""Functions of libdevice that torch has under the same name."""
_OTHER: dict[str, Callable[..., torch.Tensor]] = {
    "add_rn": torch.add,
    "cbrt": lambda x: x.sign() * x.abs().pow(1 / 3),
    "div_rn": torch.div,
    "exp10": lambda x: torch.pow(10.0, x),
    "fast_cosf": torch.cos,
    "fast_dividef": torch.div,
    "fast_exp10f": lambda x: torch.pow(10.0, x),
    "fast_expf": torch.exp,
    "fast_log10f": torch.log10,
    "fast_log2f": torch.log2,
    "fast_logf": torch.log,
    "fast_powf": torch.pow,
    "fast_sinf": torch.sin,
    "fast_tanf": torch.tan,
    "fdim": lambda x, y: (x - y).clamp(min=0.0),
    "finitef": torch.isfinite,
    "fma": lambda x, y, z: (x.double() * y.double() + z.double()).to(x.dtype),
    "isfinited": torch.isfinite,
    "llrint": lambda x: torch.round(x).long(),
    "llround": lambda x: (x.sign() * (x.abs() + 0.5).floor()).long(),
    "mul_rn": torch.mul,
    "nearbyint": torch.round,
    "normcdf": torch.special.ndtr,
    "rcp_rn": torch.reciprocal,
    "rint": torch.round,
    "round": lambda x: x.sign() * (x.abs() + 0.5).floor(),
    "saturatef": lambda x: x.clamp(0.0, 1.0),
    "sqrt_rn": torch.sqrt,
    "sub_rn": torch.sub,
    "tgamma": lambda x: torch.lgamma(x).exp(),
}


def _give_libdevice() -> None:
    """Functions of libdevice on float32 or float64 blocks and numbers, by torch's."""
    functions = {name: getattr(torch, name) for name in _SAME} | _OTHER
    functions["fma_rn"] = functions["fma"]
    for path in ("libdevice", "cuda.libdevice", "hip.libdevice"):
        with suppress(ImportError):  # which of them there are differs between Triton's packages
            libdevice = importlib.import_module(f"triton.language.extra.{path}")
            for name, function in functions.items():
                setattr(libdevice, name, _by_torch(function))


def _by_torch(function: Callable[..., torch.Tensor]) -> Any:
    def computed(*args: Any) -> Any:
        import triton.language as tl
        from triton.runtime.interpreter import TensorHandle

        args = tuple(a.value if isinstance(a, tl.constexpr) else a for a in args)
        like = next(a for a in args if isinstance(a, tl.tensor))
        data = [a.handle.data if isinstance(a, tl.tensor) else a for a in args]
        values = [np.array(operand, like.handle.data.dtype) for operand in data]
        result = function(*(torch.from_numpy(np.array(v)) for v in np.broadcast_arrays(*values))).numpy()
        dtype = {np.dtype(bool): tl.int1, np.dtype(np.int64): tl.int64}.get(result.dtype, like.dtype)
        is_block = any(isinstance(a, tl.tensor) and a.type.is_block() for a in args)
        kind = tl.block_type(dtype, list(result.shape)) if is_block else dtype
        return tl.tensor(TensorHandle(result, dtype), kind)

    return computed


def to_bfloat16_bits(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """float32 values (any shape) to the bits of bfloat16 (uint16), to nearest even, NaN kept."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    rounded = ((bits.astype(np.uint64) + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where((bits & 0x7FFFFFFF) > 0x7F800000, np.uint16(0x7FC0), rounded).reshape(values.shape)


def from_bfloat16_bits(bits: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The bits of bfloat16 (uint16, any shape) as float32."""
    return (bits.astype(np.uint32) << 16).view(np.float32)
