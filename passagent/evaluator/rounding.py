"""Triton's interpreter, made to compute as the hardware does.

The interpreter cuts float32 off to bfloat16 where a GPU rounds to nearest even, and knows no libdevice; a
correct pass would be judged wrong on the CPU for it. Seen in triton 3.6 and 3.9.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch


def round_as_hardware_does() -> None:
    """Replace the interpreter's cast from float32 to bfloat16, in this process."""
    import triton.language as tl
    from triton.runtime import interpreter

    original = interpreter._convert_float

    def convert(data: Any, source: Any, target: Any, rounding_mode: Any) -> Any:
        if source == tl.float32 and target == tl.bfloat16:
            return to_bfloat16_bits(np.asarray(data))
        return original(data, source, target, rounding_mode)

    interpreter._convert_float = convert
    _give_libdevice()


_LIBDEVICE = [
    *("exp", "exp2", "log", "log2", "log10", "log1p", "expm1", "tanh", "tan", "sin", "cos", "erf"),
    *("pow", "rsqrt", "sqrt"),
]


def _give_libdevice() -> None:
    """Functions of libdevice of one or two float32 or float64 blocks, by torch's of that name."""
    from triton.language.extra import libdevice

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
