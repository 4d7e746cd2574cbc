"""The gate: which operators of torch a replacement runs, in every call and at no cost to the honest.

A dispatch key that torch itself leaves unused is switched on while a replaced region runs. Operators that
allocate, take views or read metadata fall through it, in the dispatcher's own tables; every other operator
lands in `_record`, which notes who called it and lets it run. So checked and timed calls are watched alike,
and a candidate that behaves differently in the two gains nothing.
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

from passagent.evaluator import rounding
from passagent.evaluator.guards.rules import COMPUTING_OPERATOR
from passagent.evaluator.result import Violation

_KEY_NAME = "TESTING_ONLY_GenericMode"
_LAUNCHING = ("runtime/interpreter.py", "runtime/autotuner.py", "testing.py")
"""Files of Triton's that run operators of torch for their own purposes."""
_ALLOCATING = {
    "empty", "empty_strided", "empty_like", "empty_permuted", "new_empty", "new_empty_strided", "zeros",
    "zeros_like", "new_zeros", "ones", "ones_like", "new_ones", "full", "full_like", "new_full",
    "scalar_tensor", "zero_", "fill_", "zero", "lift_fresh", "_efficientzerotensor",
}  # fmt: skip
_METADATA = {
    "is_same_size", "sym_size", "sym_stride", "sym_numel", "sym_storage_offset", "size", "stride", "numel",
    "dim", "is_contiguous", "is_pinned", "storage_offset", "_unsafe_view", "_reshape_copy", "device",
    "record_stream", "is_complex", "is_floating_point", "is_signed", "_has_compatible_shallow_copy_type",
    "broadcast_tensors", "result_type", "can_cast", "promote_types", "clone", "contiguous", "detach_",
    "get_device", "is_set_to", "is_conj", "is_neg", "is_inference", "is_leaf", "is_distributed", "output_nr",
    "retains_grad", "_version", "dense_dim", "sparse_dim", "is_coalesced", "qscheme", "sym_is_contiguous",
    "_has_same_storage_numel", "_is_zerotensor", "_debug_has_internal_overlap",
}  # fmt: skip
"""Beside metadata the copies that change nothing: whether an output is such a copy the audit judges."""
_PLAIN = {type(None), bool, int, float, complex, str, torch.device, torch.dtype, torch.layout}
_NO_VIEW = {"_conj", "_neg_view", "conj", "resolve_conj", "resolve_neg", "set_", "view_dtype"}
"""Views by their schema that stand for arithmetic, or for other memory."""


class Gate:
    """Records the computing operators of a candidate, whose files are under `root`, as Violations.

    They still run, so that the evaluation goes on. Triton's own operators (the interpreter's copies, the
    autotuner's benchmark) are not the candidate's: an operator belongs to the innermost frame that lies in
    the candidate's files or in Triton. One gate at a time.
    """

    def __init__(self, root: Path) -> None:
        self.found: list[Violation] = []
        self.calls = 0
        """Computing operators seen, each time."""
        self._root = f"{root}/"
        triton = _package_directory("triton")
        self._triton = tuple(f"{triton}{name}" for name in _LAUNCHING) if triton else ()
        self._triton += (rounding.__file__,)  # libdevice's functions, for the interpreter
        install()
        _active[:] = [self]

    def wrap(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, watched whenever it runs."""
        switch, key = _switch, _key()

        @functools.wraps(function)
        def watched(*args: Any) -> Any:
            switch(key, True)
            try:
                return plain(function(*args))
            finally:
                switch(key, False)

        return watched

    def open(self) -> None:
        """Watch from now on, until `close`: for a graph that holds nothing but replacements."""
        _switch(_key(), True)

    def close(self) -> None:
        """Stop watching."""
        _switch(_key(), False)

    def take(self) -> list[Violation]:
        """What was found since the last time."""
        found = list(self.found)
        self.found.clear()
        return found

    def owner(self, frame: FrameType | None) -> tuple[str, int] | None:
        """File and line of the candidate's that `frame` was called from; None if Triton's launcher called.

        That is its interpreter and its autotuner: its other functions (`triton.cdiv`) do what they are given.
        """
        while frame is not None:
            name = frame.f_code.co_filename
            if self._triton and name.startswith(self._triton):
                return None
            if name.startswith(self._root):
                return name.removeprefix(self._root).removeprefix("pass_dir/"), frame.f_lineno
            frame = frame.f_back
        return "", 0

    def record(self, reason: str, owner: tuple[str, int]) -> None:
        """Note a computing operator, each line once."""
        self.calls += 1
        file, line = owner
        message = COMPUTING_OPERATOR.format(operator=reason)
        violation = Violation(rule="computing_operator", file=file, line=line, message=message)
        if violation not in self.found:
            self.found.append(violation)


def plain(result: Any) -> Any:
    """What a replacement returned, for a graph to take apart: that runs nothing more of the candidate's."""
    kind = type(result)
    if kind is torch.Tensor or (kind is tuple and all(type(part) is torch.Tensor for part in result)):
        return result  # mostly, and in timed calls
    if kind in _PLAIN:
        return result
    if isinstance(result, (tuple, list)):
        return tuple([plain(part) for part in result])
    if isinstance(result, torch.Tensor):  # a parameter; the audit judges others
        return result
    raise TypeError(
        f"the replacement returned a {kind.__name__}; return tensors, in a tuple if there are several"
    )


@contextmanager
def ungated() -> Iterator[None]:
    """What runs within is not watched: the evaluator's own operators during an audit."""
    with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(_key())):
        yield


_active: list[Gate] = []
_switch = torch._C._dispatch_tls_set_dispatch_key_included
_libraries: list[torch.library.Library] = []


@functools.cache
def _key() -> Any:
    key = torch._C._parse_dispatch_key(_KEY_NAME)
    if key is None:
        raise RuntimeError(f"this torch has no dispatch key {_KEY_NAME}; the evaluator needs it")
    return key


@functools.cache
def install() -> None:
    """Put the gate into torch's dispatcher, in this process and those forked from it (about 10 ms, once)."""
    fallback = torch.library.Library("_", "IMPL")
    fallback.fallback(_record, _KEY_NAME)
    aten = torch.library.Library("aten", "IMPL")
    for name in torch._C._dispatch_get_all_op_names():
        if not name.startswith("aten::"):
            continue
        packet, _, overload = name.removeprefix("aten::").partition(".")
        try:
            operator = getattr(getattr(torch.ops.aten, packet), overload or "default")
        except AttributeError:
            continue  # known by name only: the fallback takes it
        if _is_allowed(operator):
            aten.impl(name.removeprefix("aten::"), torch.library.fallthrough_kernel, _KEY_NAME)
    _libraries[:] = [fallback, aten]


def _record(operator: Any, *args: Any, **kwargs: Any) -> Any:
    reason = computes(operator, args, kwargs)
    if reason is not None and _active and (owner := _active[0].owner(sys._getframe(1))) is not None:
        _active[0].record(reason, owner)
    with ungated():
        return operator(*args, **kwargs)


def _is_allowed(operator: Any) -> bool:
    """Whatever its arguments: it allocates, takes a view or reads metadata."""
    name = operator.overloadpacket.__name__
    if name in _METADATA:
        return True
    if name in _ALLOCATING:
        return operator._overloadname != "Tensor"  # fill_(tensor) reads a value
    returns = operator._schema.returns
    return (
        name not in _NO_VIEW
        and bool(returns)
        and all(r.alias_info is not None and not r.alias_info.is_write for r in returns)
    )


def computes(operator: Any, args: Any, kwargs: Any) -> str | None:
    """The operator in words if it is more than an allocation, a view, metadata or a plain copy; else None."""
    if not isinstance(operator, torch._ops.OpOverload):
        return str(operator)
    if _is_allowed(operator):
        return None
    name = operator.overloadpacket.__name__
    if name == "_to_copy":
        source, dtype = args[0], kwargs.get("dtype")
        if dtype is None or dtype == source.dtype:
            return None
        return f"aten._to_copy (a cast from {source.dtype} to {dtype})"
    if name == "copy_":
        target, source = args[0], args[1]
        nbytes = target.numel() * target.itemsize
        whole = _is_dense(target) and nbytes == target.untyped_storage().nbytes()
        if target.dtype == source.dtype and target.shape == source.shape and whole:
            return None
        return "aten.copy_ (into a part of a tensor, or with a cast)"
    return f"aten.{name}"


def _is_dense(tensor: torch.Tensor) -> bool:
    """Its elements fill a range of memory, each once, in whatever order."""
    step = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size == 1:
            continue
        if stride != step:
            return False
        step *= size
    return True


def _package_directory(name: str) -> str | None:
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None
    return f"{Path(spec.origin).resolve().parent}/" if spec is not None and spec.origin else None
