"""Interception of every operator that a replacement runs: it may allocate and take views, not compute.

The mode is entered around each replaced region only, so that what stays eager is never seen.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from passagent.evaluator.guards.rules import COMPUTING_OPERATOR
from passagent.evaluator.result import Violation

_ALLOCATING = {
    "empty", "empty_strided", "empty_like", "empty_permuted", "new_empty", "new_empty_strided", "zeros",
    "zeros_like", "new_zeros", "ones", "ones_like", "new_ones", "full", "full_like", "new_full",
    "scalar_tensor", "zero_", "fill_", "zero", "lift_fresh", "_efficientzerotensor",
}  # fmt: skip
_METADATA = {
    "is_same_size", "sym_size", "sym_stride", "sym_numel", "sym_storage_offset", "size", "stride", "numel",
    "dim", "is_contiguous", "is_pinned", "storage_offset", "_unsafe_view", "_reshape_copy", "device",
    "record_stream",
}  # fmt: skip
_COPYING = {"clone", "contiguous", "_to_copy", "copy_"}
_NO_VIEW = {"_conj", "_neg_view", "conj", "resolve_conj", "resolve_neg"}
"""Views by their schema that stand for arithmetic."""


class DispatchGuard:
    """Records what a candidate's replacement functions compute through torch.

    `wrap` goes around each replacement function; while `active` its operators are watched and recorded as
    Violations. They still run, so that the evaluation goes on. Triton's own operators (the interpreter's
    copies, the autotuner's benchmark) are not the candidate's: an operator belongs to the innermost frame
    that lies in the candidate's files under `root` or in Triton.
    """

    def __init__(self, root: Path) -> None:
        self._root = f"{root}/"
        self._triton = _package_directory("triton")
        self._found: list[Violation] | None = None

    def wrap(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, watched while the guard is active."""

        @functools.wraps(function)
        def watched(*args: Any) -> Any:
            if self._found is None:
                return function(*args)
            with _Watch(self, function):
                return function(*args)

        return watched

    @contextmanager
    def active(self) -> Iterator[list[Violation]]:
        """Watch; yields the list that fills with violations, each operator of a line once."""
        if self._found is not None:
            raise RuntimeError("the dispatch guard is active already")
        self._found = []
        try:
            yield self._found
        finally:
            self._found = None

    def record(self, operator: str, frame: FrameType | None, function: Callable[..., Any]) -> None:
        """Note a computing operator called from `frame`, unless Triton called it."""
        code = getattr(function, "__code__", None)
        file, line = (code.co_filename, code.co_firstlineno) if code is not None else ("", 0)
        while frame is not None:
            name = frame.f_code.co_filename
            if name == __file__ and frame.f_code.co_name == "watched":
                break
            if self._triton is not None and name.startswith(self._triton):
                return
            if name.startswith(self._root):
                file, line = name, frame.f_lineno
                break
            frame = frame.f_back
        message = COMPUTING_OPERATOR.format(operator=operator)
        file = file.removeprefix(self._root).removeprefix("pass_dir/")
        violation = Violation(rule="computing_operator", file=file, line=line, message=message)
        if self._found is not None and violation not in self._found:
            self._found.append(violation)


class _Watch(TorchDispatchMode):
    def __init__(self, guard: DispatchGuard, function: Callable[..., Any]) -> None:
        super().__init__()
        self.guard, self.function = guard, function

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        reason = computes(func, args, kwargs)
        if reason is not None:
            self.guard.record(reason, sys._getframe(1), self.function)
        return func(*args, **kwargs)


def computes(func: Any, args: Any, kwargs: Any) -> str | None:
    """The operator in words if it is more than an allocation, a view, metadata or a plain copy; else None."""
    if not isinstance(func, torch._ops.OpOverload):
        return str(func)
    name = func.overloadpacket.__name__
    if name in _ALLOCATING or name in _METADATA:
        return None
    if name in _COPYING:
        return _copy(name, args, kwargs)
    returns = func._schema.returns
    if (
        name not in _NO_VIEW
        and returns
        and all(r.alias_info is not None and not r.alias_info.is_write for r in returns)
    ):
        return None
    return f"aten.{name}"


def _copy(name: str, args: Any, kwargs: Any) -> str | None:
    source = args[0]
    if name == "_to_copy":
        dtype = kwargs.get("dtype")
        if dtype is not None and dtype != source.dtype:
            return f"aten._to_copy (a cast from {source.dtype} to {dtype})"
    if name == "copy_":
        source = args[1]
        whole = (
            args[0].is_contiguous()
            and args[0].numel() * args[0].itemsize == args[0].untyped_storage().nbytes()
        )
        if args[0].dtype != source.dtype or args[0].shape != source.shape or not whole:
            return "aten.copy_ (into a part of a tensor, or with a cast)"
    return None


def _package_directory(name: str) -> str | None:
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None
    return f"{Path(spec.origin).resolve().parent}/" if spec is not None and spec.origin else None
