"""Which memory a candidate's kernels are given: seen where Triton, C++ and CUDA kernels are launched.

Observation replaces `__call__` of the launchers' classes for as long as it lasts, and asks the launcher of
passagent.kernels to tell: a timed call pays nothing for it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from passagent.kernels import launch

_ADDRESSES = (torch.int64, torch.uint64)
_TABLE = 4096
"""Elements of a table of addresses, at most."""

_LAUNCHERS = [
    ("triton.runtime.interpreter", "GridExecutor"),
    ("triton.backends.nvidia.driver", "CudaLauncher"),
]
"""Module and class whose `__call__` launches; what is not imported cannot have run."""


@contextmanager
def observed(pointers: set[int]) -> Iterator[None]:
    """Collect the addresses in the arguments of every launch: of tensors, of descriptors, and plain ints.

    At the end those in tables too: an int may be an address whether it is passed itself or in a tensor.
    """
    tables: list[torch.Tensor] = []
    with ExitStack() as stack:
        for module, name in _LAUNCHERS:
            launcher = getattr(sys.modules.get(module), name, None)
            if launcher is not None:
                stack.enter_context(_replaced(launcher, pointers, tables))
        stack.enter_context(launch.observed(lambda *args: _collect(args, pointers, tables)))
        yield
    for table in tables:
        pointers.update(table.flatten().tolist())


@contextmanager
def _replaced(launcher: type, pointers: set[int], tables: list[torch.Tensor]) -> Iterator[None]:
    original = launcher.__call__  # type: ignore[method-assign, operator]

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        _collect([*args, *kwargs.values()], pointers, tables)
        return original(self, *args, **kwargs)

    launcher.__call__ = call  # type: ignore[method-assign, operator]
    try:
        yield
    finally:
        launcher.__call__ = original  # type: ignore[method-assign, operator]


def _collect(values: list[Any] | tuple[Any, ...], pointers: set[int], tables: list[torch.Tensor]) -> None:
    for value in values:
        if isinstance(value, int):
            pointers.add(value)
        elif isinstance(value, (tuple, list)):
            _collect(value, pointers, tables)
        elif hasattr(value, "data_ptr"):
            pointers.add(value.data_ptr())
            if isinstance(value, torch.Tensor) and value.dtype in _ADDRESSES and value.numel() <= _TABLE:
                tables.append(value)
        elif hasattr(value, "base"):  # a tensor descriptor
            _collect([value.base], pointers, tables)
