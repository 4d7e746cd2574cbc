"""Index arithmetic: elements are read elsewhere, chosen among tensors, or made of their position."""

from __future__ import annotations

from typing import Any

from passagent.models.expert.ir import Axis, Cat, Expr, Size, Value, fixed
from passagent.models.expert.lower_views import as_size, unsqueeze
from passagent.models.expert.lowering import Call, Number, compute_type, int_list, lowers, wrap
from passagent.models.expert.shapes import broadcast, read_at, whole


@lowers("roll")
def roll(c: Call, input: Value, shifts: Any, dims: Any = None) -> Value:
    value = c.trace.refresh(input)
    if dims is None:
        raise c.fail("over the flattened tensor")
    for shift, d in zip(int_list(shifts), int_list(dims), strict=True):
        dim = wrap(d, len(value.dims))
        value, old = whole(c.trace, value, dim)
        if old is None:
            continue
        by, n = as_size(shift), c.trace.text(old.size)
        axis = c.trace.axis(old.size)
        offset = Size(-by.hint % old.size.hint, f"(-({by.text}) % {n})")
        moved = c.trace.add(c.trace.index(axis), c.trace.integer(offset))
        index = c.trace.op("index_mod", [moved, c.trace.integer(old.size)], "int64")
        value = read_at(c.trace, value, dim, axis, index)
    return value


@lowers("pad")
def pad(c: Call, input: Value, pad: Any, mode: str = "constant", value: Number | None = None) -> Value:
    if mode != "constant":
        raise c.fail(f"mode {mode}")
    result = c.trace.refresh(input)
    fill = c.const_value(value or 0, c.out).expr
    for position in range(0, len(pad), 2):
        before, after = as_size(pad[position]), as_size(pad[position + 1])
        if before.hint < 0 or after.hint < 0:
            raise c.fail("negative padding")
        if before.text == after.text == "0":
            continue
        result = _pad_one(c, result, len(result.dims) - 1 - position // 2, before, after, fill)
    return result


def _pad_one(c: Call, value: Value, dim: int, before: Size, after: Size, fill: Expr) -> Value:
    have = c.trace.size_of(value.dims[dim])
    total = Size(
        have.hint + before.hint + after.hint, f"({c.trace.text(have)} + {before.text} + {after.text})"
    )
    for s in (before, after):
        c.trace.guard(f"{s.text} >= 0")
    axis = c.trace.axis(total)
    inner = c.trace.add(c.trace.index(axis), c.trace.mul(c.trace.integer(-1), c.trace.integer(before)))
    return _inside(c, read_clamped(c, value, dim, axis, inner, have), inner, have, fill)


def read_clamped(c: Call, value: Value, dim: int, axis: Axis, index: Expr, size: Size) -> Value:
    """Read at `index` where that is inside, at the nearest element elsewhere (never outside the tensor)."""
    t = c.trace
    c.trace.guard(f"{t.text(size)} > 0")
    last = t.integer(Size(size.hint - 1, f"({t.text(size)} - 1)"))
    nearest = t.op("index_clamp", [index, last], "int64")
    return read_at(t, value, dim, axis, nearest)


def _inside(c: Call, value: Value, index: Expr, size: Size, otherwise: Expr) -> Value:
    t = c.trace
    test = t.op(
        "and",
        [t.op("ge", [index, t.integer(0)], "bool"), t.op("lt", [index, t.integer(size)], "bool")],
        "bool",
    )
    compute = compute_type(value.dtype)
    chosen = t.op("where", [test, c.wide(value.expr), c.wide(t.resolve(otherwise))], compute)
    return Value(value.dims, c.finish(chosen, value.dtype, exact=True))


@lowers("cat", "concat")
def cat(c: Call, tensors: Any, dim: int = 0) -> Value:
    return _cat(c, [Value(v.dims, c.trace.cast(v.expr, c.out)) for v in tensors], dim)


def _cat(c: Call, tensors: list[Value], dim: int) -> Value:
    """Chosen by the index along `dim`; the pieces are kept for whoever loops over each of them alone."""
    t = c.trace
    tensors = [t.refresh(v) for v in tensors]
    dim = wrap(dim, len(tensors[0].dims))
    if any(len(v.dims) != len(tensors[0].dims) for v in tensors):
        raise c.fail("tensors of different rank")
    lengths = [t.size_of(v.dims[dim]) for v in tensors]
    own = [t.axis(length) for length in lengths]
    hidden = []  # without `dim`, over which each has an axis of its own: the other dimensions run together
    for v, axis in zip(tensors, own, strict=True):
        read = read_at(t, v, dim, axis, t.index(axis))
        hidden.append(Value([*read.dims[:dim], (), *read.dims[dim + 1 :]], read.expr))
    dims, parts = broadcast(t, hidden)
    starts = [fixed(0)]
    for length in lengths:
        starts.append(plus(c, starts[-1], length))
    axis = t.axis(starts.pop())
    element = c.wide(parts[-1])
    for k in reversed(range(len(parts))):
        index = t.add(t.index(axis), t.mul(t.integer(-1), t.integer(starts[k])))
        t.guard(f"{t.text(lengths[k])} > 0")
        nearest = t.op("index_clamp", [index, t.integer(plus(c, lengths[k], fixed(-1)))], "int64")
        read_part = c.wide(t.substitute(parts[k], {own[k]: nearest}))
        inside = t.op("lt", [index, t.integer(lengths[k])], "bool")
        last = k == len(parts) - 1
        element = read_part if last else t.op("where", [inside, read_part, element], compute_type(c.out))
    element = c.finish(element, c.out, exact=True)
    around = [dims[:dim], dims[dim + 1 :]]
    pieces = [
        (Value([*around[0], (a,), *around[1]], part), start)
        for a, part, start in zip(own, parts, starts, strict=True)
    ]
    if len(parts) > 1:
        t.cats.append(Cat(axis, element, tuple(zip(own, parts, starts, strict=True))))
    return Value([*around[0], (axis,), *around[1]], element, pieces, dim)


def plus(c: Call, a: Size, b: Size) -> Size:
    """Sum of two sizes."""
    x, y = c.trace.text(a), c.trace.text(b)
    if a.constant and b.constant:
        return fixed(a.hint + b.hint)
    if x == "0" or y == "0":
        return b if x == "0" else a
    return Size(a.hint + b.hint, f"({x} - {y[1:]})" if y.startswith("-") else f"({x} + {y})")


@lowers("stack")
def stack(c: Call, tensors: Any, dim: int = 0) -> Value:
    dim = wrap(dim, len(tensors[0].dims) + 1)
    return _cat(c, [unsqueeze(c, Value(v.dims, c.trace.cast(v.expr, c.out)), dim) for v in tensors], dim)


@lowers("repeat", "tile")
def repeat(c: Call, input: Value, *counts: Any) -> Value:
    sizes = [as_size(s) for s in int_list(*counts)]
    value = c.trace.refresh(input)
    dims: list[tuple[Axis, ...]] = [()] * (len(sizes) - len(value.dims)) + value.dims
    if len(dims) != len(sizes):
        raise c.fail("fewer counts than dimensions")
    new = [((c.trace.axis(n), *d) if n.text != "1" else d) for n, d in zip(sizes, dims, strict=True)]
    return Value(new, value.expr)


@lowers("repeat_interleave")
def repeat_interleave(c: Call, input: Value, repeats: Any, dim: int | None = None) -> Value:
    if isinstance(repeats, Value) or dim is None:
        raise c.fail("with a tensor of counts or over the flattened tensor")
    value = c.trace.refresh(input)
    dim = wrap(dim, len(value.dims))
    axis = c.trace.axis(as_size(repeats))
    return Value([(*d, axis) if k == dim else d for k, d in enumerate(value.dims)], value.expr)


@lowers("arange")
def arange(c: Call, start: Any, end: Any = None, step: Any = 1, **kwargs: Any) -> Value:
    if end is None:
        start, end = 0, start
    first, last, by = as_size(start), as_size(end), as_size(step)
    if by.text != "1":
        raise c.fail("a step other than one")
    text = last.text if first.text == "0" else f"({last.text} - {first.text})"
    size = (
        fixed(last.hint - first.hint)
        if first.constant and last.constant
        else Size(last.hint - first.hint, text)
    )
    axis = c.trace.axis(size)
    index = c.trace.add(c.trace.index(axis), c.trace.integer(first))
    return Value([(axis,)], c.trace.cast(index, c.out))


@lowers("zeros", "ones", "full")
def full(c: Call, *size: Any, **kwargs: Any) -> Value:
    number: Number = {"zeros": 0, "ones": 1}.get(c.op, kwargs.get("fill_value", 0))
    if c.op == "full" and "fill_value" not in kwargs:
        *size, number = size  # type: ignore[assignment]
    sizes = [as_size(s) for s in int_list(*size)]
    return Value([(c.trace.axis(s),) for s in sizes], c.const_value(number, c.out).expr)


@lowers("embedding")
def embedding(c: Call, input: Value, weight: Value, *args: Any, **kwargs: Any) -> Value:
    if (len(args) > 1 and args[1] is not None) or kwargs.get("max_norm") is not None:
        raise c.fail("max_norm")
    return gather_rows(c, weight, 0, input)


@lowers("index_select")
def index_select(c: Call, input: Value, dim: int, index: Value) -> Value:
    return gather_rows(c, input, wrap(dim, len(input.dims)), index)


def gather_rows(c: Call, table: Value, dim: int, index: Value) -> Value:
    """`table` read along `dim` at the elements of `index`, whose dimensions take the place of `dim`."""
    t = c.trace
    table, index = t.refresh(table), t.refresh(index)
    if t.resolve(table.expr).kind != "load":
        raise c.fail("from a computed table")
    where = t.cast(index.expr, "int64")
    read = read_at(t, table, dim, None, where)
    read.dims[dim:dim] = index.dims
    return read
