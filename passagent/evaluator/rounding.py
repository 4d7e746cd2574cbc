"""Triton's interpreter, made to compute as the hardware does.

The interpreter cuts float32 off to bfloat16 where a GPU rounds to nearest even, computes on bfloat16 as if
its bits were an integer's, and knows no libdevice; a correct pass would be judged wrong on the CPU for it.
Seen in triton 3.6 and 3.9.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import torch


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
    def widened(self: Any, given: Any) -> Any:
        import triton.language as tl

        if not isinstance(given, tuple):
            return widened(self, (given,))[0]
        half = [part.dtype == tl.bfloat16 for part in given]
        if not any(half):
            return apply(self, given)
        pairs = zip(given, half, strict=True)
        made = apply(self, tuple(_cast(p, tl.float32, from_bfloat16_bits) if h else p for p, h in pairs))
        pairs = zip(made, half, strict=False)  # an extremum without its index is one result of two
        return tuple(_cast(p, tl.bfloat16, to_bfloat16_bits) if h else p for p, h in pairs)

    return widened


def _cast(value: Any, dtype: Any, by: Callable[..., Any]) -> Any:
    """A value of the interpreter's in another dtype; a scalar stays one."""
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle

    kind = tl.block_type(dtype, list(value.shape)) if value.type.is_block() else dtype
    return tl.tensor(TensorHandle(by(value.handle.data), dtype), kind)


_LIBDEVICE = [
    "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "ceil", "copysign", "cos", "cosh", "erf",
    "erfc", "exp", "exp2", "expm1", "floor", "fmod", "log", "log10", "log1p", "log2", "pow", "rsqrt", "sin",
    "sinh", "sqrt", "tan", "tanh", "trunc",
]  # fmt: skip


def _give_libdevice() -> None:
    """Functions of libdevice of one or two float32 or float64 blocks, by torch's of that name."""
    for path in ("libdevice", "cuda.libdevice", "hip.libdevice"):
        with suppress(ImportError):  # which of them there are differs between Triton's packages
            libdevice = importlib.import_module(f"triton.language.extra.{path}")
            for name in _LIBDEVICE:
                setattr(libdevice, name, _by_torch(name))


def _by_torch(name: str) -> Any:
    def function(*args: Any) -> Any:
        import triton.language as tl
        from triton.runtime.interpreter import TensorHandle

        given = [torch.from_numpy(np.array(a.handle.data)) for a in args]
        data = getattr(torch, name)(*given).numpy()
        return tl.tensor(TensorHandle(data, args[0].handle.dtype), args[0].type)

    return function


def to_bfloat16_bits(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """float32 values (any shape) to the bits of bfloat16 (uint16), to nearest even, NaN kept."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    rounded = ((bits.astype(np.uint64) + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where((bits & 0x7FFFFFFF) > 0x7F800000, np.uint16(0x7FC0), rounded).reshape(values.shape)


def from_bfloat16_bits(bits: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The bits of bfloat16 (uint16, any shape) as float32."""
    return (bits.astype(np.uint32) << 16).view(np.float32)
