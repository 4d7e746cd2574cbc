"""Index arithmetic: elements are read elsewhere, chosen among tensors, or made of their position."""

from __future__ import annotations

from typing import Any

from passagent.expert.lower.call import Call, Number, compute_type, int_list, lowers, wrap
from passagent.expert.lower.expressions import Axis, Cat, Expr, Size, Value, fixed
from passagent.expert.lower.movement import unsqueeze
from passagent.expert.lower.shapes import as_size, broadcast, position, read_at, regroup, whole


@lowers("roll")
def roll(c: Call, input: Value, shifts: Any, dims: Any = None) -> Value:
    value = c.trace.refresh(input)
    if dims is None:
        shape = c.trace.shape(value)
        flat = regroup(c.trace, value, [c.trace.times(shape)])
        return regroup(c.trace, roll(c, flat, shifts, 0), shape)
    for shift, d in zip(int_list(shifts), int_list(dims), strict=True):
        dim = wrap(d, len(value.dims))
        value, old = whole(c.trace, value, dim)
        if old is None:
            continue
        by, n = as_size(shift), c.trace.text(old.size)
        axis = c.trace.axis(old.size)
        c.trace.guard(f"{n} > 0")
        offset = Size(-by.hint % old.size.hint, f"(-({by.text}) % {n})")
        moved = c.trace.add(c.trace.index(axis), c.trace.integer(offset))
        index = c.trace.op("index_mod", [moved, c.trace.integer(old.size)], "int64")
        value = read_at(c.trace, value, dim, axis, index)
    return value


@lowers("pad")
def pad(c: Call, input: Value, pad: Any, mode: str = "constant", value: Number | None = None) -> Value:
    """Padding by a number, by the nearest element, or by those mirrored at the edge."""
    if mode not in {"constant", "replicate", "reflect"}:
        raise c.fail(f"mode {mode}")
    t, result = c.trace, c.trace.refresh(input)
    fill = c.const_value(value or 0, c.out).expr
    for k in range(0, len(pad), 2):
        before, after = as_size(pad[k]), as_size(pad[k + 1])
        if before.hint < 0 or after.hint < 0:
            raise c.fail("negative padding")
        if before.text == after.text == "0":
            continue
        dim = len(result.dims) - 1 - k // 2
        have = t.size_of(result.dims[dim])
        axis = t.axis(t.plus(t.plus(have, before), after))
        inner = t.add(t.index(axis), t.mul(t.integer(-1), t.integer(before)))
        last = t.integer(t.plus(have, fixed(-1)))
        index = t.op("index_clamp", [inner, last], "int64")
        if mode == "constant":
            t.guard(f"{before.text} >= 0")
            t.guard(f"{after.text} >= 0")
            t.guard(f"{t.text(have)} > 0")
            result = _inside(c, read_at(t, result, dim, axis, index), inner, have, fill)
            continue
        if mode == "reflect":
            for size in (before, after):
                t.guard(f"{size.text} < {t.text(have)}")
            right = t.add(t.mul(last, t.integer(2)), t.mul(t.integer(-1), inner))
            mirrored = t.mul(t.integer(-1), inner)
            low = t.op("lt", [inner, t.integer(0)], "bool")
            high = t.op("gt", [inner, last], "bool")
            index = t.op("where", [low, mirrored, t.op("where", [high, right, inner], "int64")], "int64")
        result = read_at(t, result, dim, axis, index)
    return result


def _inside(c: Call, value: Value, index: Expr, size: Size, otherwise: Expr) -> Value:
    t = c.trace
    sides = [t.op("ge", [index, t.integer(0)], "bool"), t.op("lt", [index, t.integer(size)], "bool")]
    test = t.op("and", sides, "bool")
    compute = compute_type(value.dtype)
    chosen = t.op("where", [test, c.wide(value.expr), c.wide(t.resolve(otherwise))], compute)
    return Value(value.dims, c.finish(chosen, value.dtype, exact=True))


@lowers("cat", "concat", "concatenate")
def cat(c: Call, tensors: Any, dim: int = 0, axis: int | None = None) -> Value:
    dim = dim if axis is None else axis
    return _cat(c, [Value(v.dims, c.trace.cast(v.expr, c.out)) for v in tensors], dim)


def _cat(c: Call, tensors: list[Value], dim: int) -> Value:
    """Chosen by the index along `dim`; Trace.cats has the pieces for whoever loops over each of them."""
    t = c.trace
    tensors = [t.refresh(v) for v in tensors]
    dim = wrap(dim, len(tensors[0].dims))
    if any(len(v.dims) != len(tensors[0].dims) for v in tensors):
        raise c.fail("tensors of different rank")
    lengths = [t.size_of(v.dims[dim]) for v in tensors]
    # A tensor that stands there twice is computed once, and stored twice.
    axes: dict[Any, Axis] = {}
    own_axes = [
        axes.setdefault((v.expr, tuple(v.dims)), t.axis(length))
        for v, length in zip(tensors, lengths, strict=True)
    ]
    hidden = []  # without `dim`, over which each has an axis of its own: the other dimensions run together
    for v, axis in zip(tensors, own_axes, strict=True):
        read = read_at(t, v, dim, axis, t.index(axis))
        hidden.append(Value([*read.dims[:dim], (), *read.dims[dim + 1 :]], read.expr))
    dims, parts = broadcast(t, hidden)
    starts = [fixed(0)]
    for length in lengths:
        starts.append(t.plus(starts[-1], length))
    axis = t.axis(starts.pop())
    element = c.wide(parts[-1])
    for k in reversed(range(len(parts))):
        index = t.add(t.index(axis), t.mul(t.integer(-1), t.integer(starts[k])))
        t.guard(f"{t.text(lengths[k])} > 0")
        nearest = t.op("index_clamp", [index, t.integer(t.plus(lengths[k], fixed(-1)))], "int64")
        read_part = c.wide(t.substitute(parts[k], {own_axes[k]: nearest}))
        inside = t.op("lt", [index, t.integer(lengths[k])], "bool")
        last = k == len(parts) - 1
        element = read_part if last else t.op("where", [inside, read_part, element], compute_type(c.out))
    element = c.finish(element, c.out, exact=True)
    around = [dims[:dim], dims[dim + 1 :]]
    if len(parts) > 1:
        t.cats.append(Cat(axis, element, tuple(zip(own_axes, parts, starts, strict=True))))
    return Value([*around[0], (axis,), *around[1]], element)


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
    value, dim, _ = c.dimension(input, dim)
    axis = c.trace.axis(as_size(repeats))
    return Value([(*d, axis) if k == dim else d for k, d in enumerate(value.dims)], value.expr)


@lowers("arange")
def arange(c: Call, start: Any, end: Any = None, step: Any = 1, **kwargs: Any) -> Value:
    if end is None:
        start, end = 0, start
    first, last, by = as_size(start), as_size(end), as_size(step)
    length = c.trace.minus(last, first)
    if by.text != "1":
        if not (first.constant and last.constant and by.constant and by.hint > 0):
            raise c.fail("a step that is no number above zero")
        length = fixed(max(0, -(-length.hint // by.hint)))
    axis = c.trace.axis(length)
    index = c.trace.add(c.trace.mul(c.trace.index(axis), c.trace.integer(by)), c.trace.integer(first))
    return Value([(axis,)], c.trace.cast(index, c.out))


@lowers("eye")
def eye(c: Call, n: Any, m: Any = None, **kwargs: Any) -> Value:
    rows, columns = (c.trace.axis(as_size(s)) for s in (n, n if m is None else m))
    same = c.trace.op("eq", [c.trace.index(rows), c.trace.index(columns)], "bool")
    return Value([(rows,), (columns,)], c.trace.cast(same, c.out))


@lowers("meshgrid")
def meshgrid(c: Call, *tensors: Any, indexing: str = "ij") -> tuple[Value, ...]:
    values = [c.trace.refresh(v) for v in (tensors[0] if isinstance(tensors[0], tuple | list) else tensors)]
    if any(len(v.dims) != 1 for v in values):
        raise c.fail("of tensors that are no vectors")
    order = list(range(len(values)))
    if indexing == "xy" and len(order) > 1:
        order[:2] = [1, 0]
    sizes = [c.trace.size_of(values[k].dims[0]) for k in order]
    result = []
    for number, value in enumerate(values):
        dims: list[tuple[Axis, ...]] = [(c.trace.axis(size),) for size in sizes]
        dims[order.index(number)] = value.dims[0]
        result.append(Value(dims, value.expr))
    return tuple(result)


@lowers("flip")
def flip(c: Call, input: Value, *dims: Any) -> Value:
    value = c.trace.refresh(input)
    for d in int_list(*dims):
        value, old = whole(c.trace, value, wrap(d, len(value.dims)))
        if old is None:
            continue
        axis = c.trace.axis(old.size)
        last = c.trace.integer(c.trace.plus(old.size, fixed(-1)))
        index = c.trace.add(last, c.trace.mul(c.trace.integer(-1), c.trace.index(axis)))
        value = read_at(c.trace, value, wrap(d, len(value.dims)), axis, index)
    return value


@lowers("tril", "triu")
def triangle(c: Call, input: Value, diagonal: int = 0) -> Value:
    value = c.trace.refresh(input)
    row, column = (position(c.trace, d) for d in value.dims[-2:])
    limit = c.trace.add(row, c.trace.integer(as_size(diagonal)))
    keep = c.trace.op("le" if c.op == "tril" else "ge", [column, limit], "bool")
    compute = compute_type(c.out)
    chosen = c.trace.op("where", [keep, c.wide(value.expr), c.number(0, compute)], compute)
    return Value(value.dims, c.finish(chosen, c.out, exact=True))


@lowers("pixel_shuffle", "pixel_unshuffle", "channel_shuffle")
def pixel_shuffle(c: Call, input: Value, factor: Any) -> Value:
    value, by = c.trace.refresh(input), as_size(factor)
    *batch, channels, height, width = c.trace.shape(value)
    divide, times = c.trace.divide, c.trace.times
    if c.op == "channel_shuffle":
        inner = divide(channels, by)
        split = regroup(c.trace, value, [*batch, by, inner, height, width])
        return regroup(c.trace, _reordered(split, [1, 0, 2, 3]), [*batch, channels, height, width])
    if c.op == "pixel_shuffle":
        outer = divide(channels, times([by, by]))
        split = regroup(c.trace, value, [*batch, outer, by, by, height, width])
        sizes = [*batch, outer, times([height, by]), times([width, by])]
        return regroup(c.trace, _reordered(split, [0, 3, 1, 4, 2]), sizes)
    down, across = divide(height, by), divide(width, by)
    split = regroup(c.trace, value, [*batch, channels, down, by, across, by])
    return regroup(
        c.trace, _reordered(split, [0, 2, 4, 1, 3]), [*batch, times([channels, by, by]), down, across]
    )


def _reordered(value: Value, order: list[int]) -> Value:
    """The last dimensions in another order."""
    first = len(value.dims) - len(order)
    return Value([*value.dims[:first], *(value.dims[first + k] for k in order)], value.expr)


@lowers("unfold")
def unfold(c: Call, input: Value, *args: Any, **kwargs: Any) -> Value:
    """The method, windows along a dimension; or the function of torch.nn.functional, patches of an image."""
    is_method = len(args) + len(kwargs) == 3 and kwargs.keys() <= {"dimension", "size", "step"}
    return (_windows if is_method else _patches)(c, c.trace.refresh(input), *args, **kwargs)


def _windows(c: Call, value: Value, dimension: int, size: Any, step: Any, dilation: Any = 1) -> Value:
    """Windows along a dimension, their elements `apart` from each other in a new last one."""
    t = c.trace
    value, dim, have = c.dimension(value, dimension)
    long, by, away = as_size(size), as_size(step), as_size(dilation)
    span = long
    if away.text != "1":
        span = Size(away.hint * (long.hint - 1) + 1, f"({away.text} * ({long.text} - 1) + 1)")
    count = Size((have.hint - span.hint) // by.hint + 1, f"(({t.text(have)} - {span.text}) // {by.text} + 1)")
    t.guard(f"{span.text} <= {t.text(have)}")
    outer, inner = t.axis(count), t.axis(long)
    start = t.mul(t.index(outer), t.integer(by))
    read = read_at(t, value, dim, outer, t.add(start, t.mul(t.index(inner), t.integer(away))))
    return Value([*read.dims, (inner,)], read.expr)


def _patches(
    c: Call, input: Value, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1
) -> Value:
    """F.unfold of [*batch, C, H, W]: [*batch, C * elements of a window, windows]."""
    kernel, dilations, edge, by = (
        list(v) if isinstance(v, tuple | list) else [v, v] for v in (kernel_size, dilation, padding, stride)
    )
    value = pad(c, input, [edge[1], edge[1], edge[0], edge[0]])
    height = len(value.dims) - 2
    for k in range(2):
        value = _windows(c, value, height + k, kernel[k], by[k], dilations[k])
    *batch, channels, down, across, high, wide = c.trace.shape(value)
    times = c.trace.times
    sizes = [*batch, times([channels, high, wide]), times([down, across])]
    return regroup(c.trace, _reordered(value, [0, 3, 4, 1, 2]), sizes)


@lowers("zeros", "ones", "full", "new_zeros", "new_ones", "new_full")
def full(c: Call, *size: Any, **kwargs: Any) -> Value:
    number: Number = 1 if c.op.endswith("ones") else kwargs.get("fill_value", 0)
    if c.op.startswith("new"):
        size = size[1:]
    if c.op.endswith("full") and "fill_value" not in kwargs:
        *size, number = size  # type: ignore[assignment]
    sizes = [as_size(s) for s in int_list(*size)]
    return Value([(c.trace.axis(s),) for s in sizes], c.const_value(number, c.out).expr)
