"""The kernels that a pass imports from passagent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from passagent.kernels.cpp import cpp_kernel
    from passagent.kernels.cuda import cuda_kernel
    from passagent.kernels.plain import triton_kernel

__all__ = ["cpp_kernel", "cuda_kernel", "triton_kernel"]

_HOMES = {"cpp_kernel": "cpp", "cuda_kernel": "cuda", "triton_kernel": "plain"}


def __getattr__(name: str) -> Any:
    """Import what a pass asks for, when it is asked for: a source is checked without torch."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
