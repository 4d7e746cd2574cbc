"""From torch operators to tensor expressions: the registry, and what all lowerings share.

A lowering is a function `(c: Call, *args, **kwargs)` with the operator's own signature; tensors arrive as
Value, literals as they are, literals that became pattern parameters as Size (int) or Scalar (float).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from passagent.expert.lower.expressions import (
    HALVES,
    Axis,
    Expr,
    Number,
    Trace,
    Value,
    apply,
    compute_type,
    dtype_name,
)
from passagent.expert.lower.symbolic_sizes import ONE, Scalar, Size, Unsupported, times

Lowered = Callable[..., Any]
OPS: dict[str, Lowered] = {}


def lowers(*names: str) -> Callable[[Lowered], Lowered]:
    """Register a lowering under the names of functions and methods."""

    def register(function: Lowered) -> Lowered:
        OPS.update(dict.fromkeys(names, function))
        return function

    return register


@dataclass
class Call:
    """One operator call being lowered."""

    trace: Trace
    op: str
    out: str
    """dtype of the (first) result."""

    @property
    def target(self) -> str:
        return self.trace.target

    def fail(self, reason: str) -> Unsupported:
        return Unsupported(self.op, reason)

    def pointwise(
        self,
        function: str | Callable[..., Expr],
        *inputs: Value | Number,
        common: str = "",
        out: str = "",
        exact: bool = False,
        rounds: bool = False,
    ) -> Value:
        """Apply an operator, or a function of expressions, element by element with broadcasting.

        All inputs get the dtype `common` first, that of the result if not named, integers modulo its range.
        In 16 bits numbers, and what eager takes for one, have the type that is computed with, unless the
        operator `rounds` them.
        """
        common = common or out or self.out
        dims, parts = broadcast([v for v in inputs if isinstance(v, Value)])
        operands = iter(parts)
        args = []
        for v in inputs:
            operand = next(operands) if isinstance(v, Value) else self.trace.number(v, compute_type(common))
            is_known = self.target == "cpu" or operand.kind == "const"  # beside a kernel's launch
            alone = not isinstance(v, Value) or (is_known and not v.dims)
            stays = alone and not rounds and common in HALVES
            args.append(operand.through(compute_type(common) if stays else common))
        expr = apply(function, *args) if isinstance(function, str) else function(*args)
        return Value(dims, expr.stored(out or self.out, exact))

    def promoted(self, a: Value | Number, b: Value | Number) -> str:
        """The dtype that PyTorch promotes the inputs of a comparison to."""
        name = dtype_name(torch.result_type(_example(a), _example(b)))
        generic = any(isinstance(v, Value) and v.dtype == "half" for v in (a, b))
        return "half" if generic and name == "bfloat16" else name

    def constant(self, number: Number, dtype: str = "") -> Value:
        """A tensor without dimensions."""
        dtype = dtype or self.out
        return Value([], self.trace.number(number, compute_type(dtype)).stored(dtype))


def _example(value: Value | Number) -> Any:
    """An example that PyTorch promotes like `value`; `half` is bfloat16, as only float16 is named."""
    if not isinstance(value, Value):
        return value.hint if isinstance(value, Size | Scalar) else value
    dtype = torch.bfloat16 if value.dtype == "half" else getattr(torch, value.dtype)
    return torch.empty([1] * len(value.dims), dtype=dtype, device="meta")


def check_shape(op: str, result: Any, expected: Any) -> None:
    """Raise Unsupported if what was lowered has not the shape of `expected`, or is empty."""
    pairs = zip(result, expected, strict=True) if isinstance(result, tuple) else [(result, expected)]
    for value, like in pairs:
        if not isinstance(value, Value):  # a result that is lowered when it is unpacked
            continue
        shape = [size.hint for size in value.refresh().shape]
        eager_shape = [n if isinstance(n, int) else n.node.hint for n in like.shape]
        if shape != eager_shape:
            raise Unsupported(op, f"shape {shape} came out where eager has {eager_shape}")
        if any(n == 0 for n in shape):
            raise Unsupported(op, "an empty tensor")


def int_list(*sizes: Any) -> list[Any]:
    """`view(2, 3)` and `view((2, 3))` alike."""
    return list(sizes[0] if len(sizes) == 1 and isinstance(sizes[0], list | tuple) else sizes)


def arguments(names: str, args: Sequence[Any], named: dict[str, Any]) -> dict[str, Any]:
    """An operator's arguments by name, as far as they are given. Raises TypeError for one of another name."""
    order = names.split()
    if len(args) > len(order) or not named.keys() <= {*order}:
        raise TypeError(f"others than {', '.join(order)}")
    return dict(zip(order, args, strict=False)) | named


def wrap(dim: int, rank: int) -> int:
    """A dimension counted from the front."""
    return dim % rank if rank else 0


Dim = tuple[Axis, ...]


def broadcast(values: list[Value]) -> tuple[list[Dim], list[Expr]]:
    """Common dimensions of `values` under PyTorch's broadcasting, and each one's expression over them."""
    trace = values[0].trace
    values = [v.refresh() for v in values]
    total = values[0]
    parts = [total.expr]
    for number in range(1, len(values)):
        other = values[number].refresh()
        total = total.refresh()
        where = {axis: k for k, dim in enumerate(reversed(total.dims)) for axis in dim}
        if any(where.get(axis, k) != k for k, dim in enumerate(reversed(other.dims)) for axis in dim):
            other = renamed(other)  # an axis sits in different dimensions of the two
        dims, replaced = fit(trace, total.dims, other.dims)
        other = Value(other.dims, trace.substitute(other.expr, replaced))
        total = Value(dims, total.expr).refresh()
        parts = [trace.resolve(p) for p in parts] + [trace.resolve(other.expr)]
    return [tuple(trace.axes_of(d)) for d in total.dims], [trace.resolve(p) for p in parts]


def renamed(value: Value) -> Value:
    """The value over axes of its own."""
    trace = value.trace
    new = {axis: trace.axis(axis.size) for dim in value.dims for axis in dim}
    dims = [tuple(new[a] for a in dim) for dim in value.dims]
    return Value(dims, trace.substitute(value.expr, {a: trace.index(b) for a, b in new.items()}))


def fit(trace: Trace, left: list[Dim], right: list[Dim]) -> tuple[list[Dim], dict[Axis, Expr]]:
    """Dimensions that both broadcast to, and what to put for axes of `right` that could not be joined."""
    replaced: dict[Axis, Expr] = {}
    result: list[Dim] = []
    depth = max(len(left), len(right))
    left, right = [()] * (depth - len(left)) + left, [()] * (depth - len(right)) + right
    for first, second in zip(left, right, strict=True):
        a, b = tuple(trace.axes_of(first)), tuple(trace.axes_of(second))
        x, y = trace.size_of(a).hint, trace.size_of(b).hint
        if x == y:
            result.append(_same(trace, list(a), list(b), replaced) if a and b else a or b)
        elif x == 1 or y == 1:
            for axis in a if x == 1 else b:
                trace.drop(axis)
            result.append(b if x == 1 else a)
        else:
            raise Unsupported("broadcast", f"sizes {x} and {y} do not fit")
    return result, replaced


def _same(trace: Trace, a: list[Axis], b: list[Axis], replaced: dict[Axis, Expr]) -> Dim:
    """Make two lists of axes of the same total size run together."""
    done: list[Axis] = []
    while a or b:
        if not a or not b:
            for axis in a or b:
                trace.drop(axis)
            break
        x, y = a[0], b[0]
        if x is y or x.size.hint == y.size.hint:
            if not trace.join(x, y):
                trace.equal(x.size, y.size)
                replaced[y] = trace.index(x)
            done.append(x)
            a, b = a[1:], b[1:]
        elif y.size.hint == 1 or x.size.hint == 1:
            trace.drop(y if y.size.hint == 1 else x)
            a, b = (a, b[1:]) if y.size.hint == 1 else (a[1:], b)
        elif x.size.hint > y.size.hint and x.size.hint % y.size.hint == 0:
            a = [*trace.split(x, x.size // y.size), *a[1:]]
        elif y.size.hint % x.size.hint == 0:
            b = [*trace.split(y, y.size // x.size), *b[1:]]
        else:
            raise Unsupported("view", f"sizes {x.size.hint} and {y.size.hint} share no factor to loop over")
    return tuple(done)


def regroup(value: Value, sizes: list[Size]) -> Value:
    """`value.reshape(sizes)`, row-major; every size given (no -1)."""
    trace, value = value.trace, value.refresh()
    old = [axis for dim in value.dims for axis in dim]
    total = math.prod(axis.size.hint for axis in old)
    if total != math.prod(size.hint for size in sizes):
        raise Unsupported("view", f"{total} elements cannot be viewed as {[s.hint for s in sizes]}")
    dims: list[Dim] = []
    for position, size in enumerate(sizes):
        taken, old = _take(trace, old, size, [s.hint for s in sizes[position + 1 :]])
        dims.append(taken)
    for axis in old:
        trace.drop(axis)
    return Value(dims, value.expr).refresh()


def _take(trace: Trace, old: list[Axis], size: Size, later: list[int]) -> tuple[Dim, list[Axis]]:
    """Axes from the front of `old` that make up a dimension of `size`, and the axes left."""
    taken: list[Axis] = []
    if size.hint == 1:
        if old and old[0].size.hint == 1:
            trace.equal(old[0].size, size)
            return (old[0],), old[1:]
        trace.equal(size, ONE)
        return (), old
    reached = 1
    while reached < size.hint:
        axis, rest = old[0], old[1:]
        need = size.hint // reached
        hint = axis.size.hint
        if hint == 1:
            trace.drop(axis)
            old = rest
        elif hint <= need:
            if need % hint:
                raise Unsupported("view", f"a size of {hint} does not divide {need}")
            taken.append(axis)
            reached *= hint
            old = rest
        else:
            if hint % need:
                raise Unsupported("view", f"a size of {need} does not divide {hint}")
            part = size // trace.size_of(taken) if taken else size
            outer, inner = trace.split(axis, axis.size // part)
            trace.equal(outer.size, part)
            taken.append(outer)
            reached *= need
            old = [inner, *rest]
    trace.equal(trace.size_of(taken), size)
    return tuple(taken), old


def read_at(value: Value, dim: int, axis: Axis | None, index: Expr) -> Value:
    """The value whose dimension `dim` runs over `axis` (None: is dropped) and is read at `index`."""
    value = value.refresh()
    new: dict[Axis, Expr] = {}
    inner: list[Size] = []
    for position, axis_there in reversed(list(enumerate(value.dims[dim]))):
        part = index // value.trace.integer(times(inner)) if inner else index
        new[axis_there] = part % axis_there.size if position else part
        inner.insert(0, axis_there.size)
    dims = list(value.dims)
    dims[dim : dim + 1] = [(axis,)] if axis is not None else []
    return Value(dims, value.trace.substitute(value.expr, new))


def piece(value: Value, dim: int, start: Size, length: Size, step: Size = ONE) -> Value:
    """`length` elements along a dimension from `start` on, `step` apart."""
    axis = value.trace.axis(length)
    return read_at(value, dim, axis, value.trace.index(axis) * step + start)


def position(trace: Trace, dim: Dim) -> Expr:
    """The index in a dimension, row-major over its axes."""
    result = trace.integer(0)
    for axis in trace.axes_of(dim):
        result = result * axis.size + trace.index(axis)
    return result


def whole(value: Value, dim: int) -> tuple[Value, Axis | None]:
    """The value with dimension `dim` over one axis of its own (None if its size is one, literally)."""
    value = value.refresh()
    if len(value.dims[dim]) <= 1:
        return value, (value.dims[dim][0] if value.dims[dim] else None)
    axis = value.trace.axis(value.shape[dim])
    return read_at(value, dim, axis, value.trace.index(axis)), axis
