"""Parts of a launch: C types of parameters, and sizes of a grid."""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

_WHOLE = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
TYPES: dict[str, type] = {
    **{f"{name}_t": getattr(ctypes, f"c_{name}") for name in _WHOLE},
    "void*": ctypes.c_void_p,
    "float": ctypes.c_float,
    "double": ctypes.c_double,
    "bool": ctypes.c_bool,
    "CUtensorMap": ctypes.c_uint64 * 16,
}
"""C types of a kernel's parameters."""

Shape = int | tuple[int, ...]


class Sizes(NamedTuple):
    """The sizes of a launch."""

    grid: tuple[int, int, int] = (1, 1, 1)
    block: tuple[int, int, int] = (1, 1, 1)
    shared: int = 0
    """Shared memory, bytes."""


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
