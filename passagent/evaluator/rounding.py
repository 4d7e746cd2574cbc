"""Triton's interpreter, made to round as the hardware does.

The interpreter cuts float32 off to bfloat16 where a GPU rounds to nearest even; a correct pass would be
judged wrong on the CPU for it. Seen in triton 3.6 and 3.9.
"""

from __future__ import annotations

from typing import Any

import numpy as np


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


def to_bfloat16_bits(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """float32 values (any shape) to the bits of bfloat16 (uint16), to nearest even, NaN kept."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    rounded = ((bits.astype(np.uint64) + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where((bits & 0x7FFFFFFF) > 0x7F800000, np.uint16(0x7FC0), rounded).reshape(values.shape)
