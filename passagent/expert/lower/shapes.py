"""Dimensions of values: broadcasting, regrouping for view/reshape, and reading at other indices."""

from __future__ import annotations

import math
from collections.abc import Callable

from passagent.expert.lower.expressions import Axis, Expr, Trace, Value
from passagent.expert.lower.symbolic_sizes import ONE, Size, Unsupported, times

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
        if _misplaced(total, other):
            other = renamed(other)
        dims, replaced = fit(trace, total.dims, other.dims)
        other = Value(other.dims, trace.substitute(other.expr, replaced))
        total = Value(dims, total.expr).refresh()
        parts = [trace.resolve(p) for p in parts] + [trace.resolve(other.expr)]
    return [tuple(trace.axes_of(d)) for d in total.dims], [trace.resolve(p) for p in parts]


def _misplaced(a: Value, b: Value) -> bool:
    """Tell whether an axis sits in different dimensions (counted from the last) of the two."""
    where = {axis: k for k, dim in enumerate(reversed(a.dims)) for axis in dim}
    return any(where.get(axis, k) != k for k, dim in enumerate(reversed(b.dims)) for axis in dim)


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
    old = value.dims[dim]
    for position in reversed(range(len(old))):
        part = index // value.trace.integer(times(inner)) if inner else index
        new[old[position]] = part % old[position].size if position else part
        inner.insert(0, old[position].size)
    dims = list(value.dims)
    dims[dim : dim + 1] = [(axis,)] if axis is not None else []
    return Value(dims, value.trace.substitute(value.expr, new))


def read_along(value: Value, dim: int, size: Size, index: Callable[[Expr], Expr]) -> Value:
    """The value whose dimension `dim` has another size and is read at a function of its index."""
    axis = value.trace.axis(size)
    return read_at(value, dim, axis, index(value.trace.index(axis)))


def piece(value: Value, dim: int, start: Size, length: Size, step: Size = ONE) -> Value:
    """`length` elements along a dimension from `start` on, `step` apart."""
    return read_along(value, dim, length, lambda i: i * step + start)


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
