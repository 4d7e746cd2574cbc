"""Index arithmetic: elements are read elsewhere, chosen among tensors, or made of their position."""

from __future__ import annotations

from typing import Any

from passagent.expert.lower.call import (
    Call,
    broadcast,
    int_list,
    lowers,
    position,
    read_at,
    regroup,
    whole,
    wrap,
)
from passagent.expert.lower.expressions import Axis, Cat, Number, Value, apply
from passagent.expert.lower.formulas import where
from passagent.expert.lower.movement import unsqueeze
from passagent.expert.lower.symbolic_sizes import Size, as_size, fixed, times


@lowers("roll")
def roll(c: Call, input: Value, shifts: Any, dims: Any = None) -> Value:
    if dims is None:
        return regroup(roll(c, regroup(input, [times(input.shape)]), shifts, 0), input.shape)
    value = input
    for shift, d in zip(map(as_size, int_list(shifts)), int_list(dims), strict=True):
        dim = wrap(d, len(value.dims))
        value, old = whole(value, dim)
        if old is not None:
            n = old.size
            c.trace.guard(f"{n} > 0")
            offset = c.trace.size(-shift.hint % n.hint, f"(-({shift.text}) % {n})")
            axis = c.trace.axis(n)
            value = read_at(value, dim, axis, (c.trace.index(axis) + offset) % n)
    return value


@lowers("flip")
def flip(c: Call, input: Value, *dims: Any) -> Value:
    value = input
    for d in int_list(*dims):
        dim = wrap(d, len(value.dims))
        value, old = whole(value, dim)
        if old is not None:
            axis = c.trace.axis(old.size)
            value = read_at(value, dim, axis, c.trace.integer(old.size + -1) - c.trace.index(axis))
    return value


@lowers("pad")
def pad(c: Call, input: Value, pad: Any, mode: str = "constant", value: Number | None = None) -> Value:
    """Padding by a number, by the nearest element, or by those mirrored at the edge."""
    if mode not in {"constant", "replicate", "reflect"}:
        raise c.fail(f"mode {mode}")
    t, result = c.trace, input
    fill = c.constant(value or 0).expr
    for k in range(0, len(pad), 2):
        before, after = as_size(pad[k]), as_size(pad[k + 1])
        if before.hint < 0 or after.hint < 0:
            raise c.fail("negative padding")
        if before.text == after.text == "0":
            continue
        dim = len(result.dims) - 1 - k // 2
        have = result.shape[dim]
        axis = t.axis(have + before + after)
        inner, last = t.index(axis) - before, t.integer(have + -1)
        index = apply("index_clamp", inner, last)
        if mode == "constant":
            t.guard(f"{before.text} >= 0")
            t.guard(f"{after.text} >= 0")
            t.guard(f"{have} > 0")
            read = read_at(result, dim, axis, index)
            chosen = where((inner >= 0) & (inner < have), read.expr.wide(), t.resolve(fill).wide())
            result = Value(read.dims, chosen.stored(read.dtype, exact=True))
            continue
        if mode == "reflect":
            for size in (before, after):
                t.guard(f"{size.text} < {have}")
            right, mirrored = last * 2 - inner, -1 * inner
            index = where(inner < 0, mirrored, where(inner > last, right, inner))
        result = read_at(result, dim, axis, index)
    return result


@lowers("cat", "concat", "concatenate")
def cat(c: Call, tensors: Any, dim: int = 0, axis: int | None = None) -> Value:
    """Chosen by the index along `dim`; Trace.cats has the pieces for whoever loops over each of them."""
    t, tensors = c.trace, [v.cast(c.out).refresh() for v in tensors]
    dim = wrap(dim if axis is None else axis, len(tensors[0].dims))
    lengths = [v.shape[dim] for v in tensors]
    # A tensor that stands there twice is computed once, and stored twice.
    axes: dict[Any, Axis] = {}
    own_axes = [
        axes.setdefault((v.expr, tuple(v.dims)), t.axis(length))
        for v, length in zip(tensors, lengths, strict=True)
    ]
    hidden = []  # without `dim`, over which each has an axis of its own: the other dimensions run together
    for v, axis_of_piece in zip(tensors, own_axes, strict=True):
        read = read_at(v, dim, axis_of_piece, t.index(axis_of_piece))
        hidden.append(Value([*read.dims[:dim], (), *read.dims[dim + 1 :]], read.expr))
    dims, parts = broadcast(hidden)
    starts = [fixed(0)]
    for length in lengths:
        starts.append(starts[-1] + length)
    along = t.axis(starts.pop())
    element = parts[-1].wide()
    for k in reversed(range(len(parts))):
        index = t.index(along) - starts[k]
        t.guard(f"{lengths[k]} > 0")
        nearest = apply("index_clamp", index, lengths[k] + -1)
        read_part = t.substitute(parts[k], {own_axes[k]: nearest}).wide()
        element = read_part if k == len(parts) - 1 else where(index < lengths[k], read_part, element)
    element = element.stored(c.out, exact=True)
    if len(parts) > 1:
        t.cats.append(Cat(along, element, tuple(zip(own_axes, parts, starts, strict=True))))
    return Value([*dims[:dim], (along,), *dims[dim + 1 :]], element)


@lowers("stack")
def stack(c: Call, tensors: Any, dim: int = 0) -> Value:
    dim = wrap(dim, len(tensors[0].dims) + 1)
    return cat(c, [unsqueeze(c, v, dim) for v in tensors], dim)


@lowers("repeat", "tile")
def repeat(c: Call, input: Value, *counts: Any) -> Value:
    sizes = [as_size(s) for s in int_list(*counts)]
    dims: list[tuple[Axis, ...]] = [()] * (len(sizes) - len(input.dims)) + input.dims
    new = [((c.trace.axis(n), *d) if n.text != "1" else d) for n, d in zip(sizes, dims, strict=True)]
    return Value(new, input.expr)


@lowers("repeat_interleave")
def repeat_interleave(c: Call, input: Value, repeats: Any, dim: int) -> Value:
    axis, dim = c.trace.axis(as_size(repeats)), wrap(dim, len(input.dims))
    return Value([(*d, axis) if k == dim else d for k, d in enumerate(input.dims)], input.expr)


@lowers("arange")
def arange(c: Call, start: Any, end: Any = None, step: Any = 1, **kwargs: Any) -> Value:
    if end is None:
        start, end = 0, start
    first, last, by = as_size(start), as_size(end), as_size(step)
    length = last - first
    if by.text != "1":
        if not (first.constant and last.constant and by.constant and by.hint > 0):
            raise c.fail("a step that is no number above zero")
        length = fixed(max(0, -(-length.hint // by.hint)))
    axis = c.trace.axis(length)
    return Value([(axis,)], (c.trace.index(axis) * by + first).cast(c.out))


@lowers("linspace")
def linspace(c: Call, start: float, end: float, steps: Any, **kwargs: Any) -> Value:
    """Count the first half from the start and the other from the end, as eager does."""
    axis = c.trace.axis(as_size(steps))
    index, count = c.trace.index(axis), c.trace.constant(axis.size)
    step = (end - start) / max(count - 1, 1)
    near, far = (index.cast("float32") * step + start, end - (count - 1 - index).cast("float32") * step)
    return Value([(axis,)], where(index < count // 2, near, far).cast(c.out))


@lowers("eye")
def eye(c: Call, n: Any, m: Any = None, **kwargs: Any) -> Value:
    rows, columns = (c.trace.axis(as_size(s)) for s in (n, n if m is None else m))
    same = apply("eq", c.trace.index(rows), c.trace.index(columns))
    return Value([(rows,), (columns,)], same.cast(c.out))


@lowers("meshgrid")
def meshgrid(c: Call, *tensors: Any, indexing: str = "ij") -> tuple[Value, ...]:
    values = list(tensors[0] if isinstance(tensors[0], tuple | list) else tensors)
    order = list(range(len(values)))
    if indexing == "xy" and len(order) > 1:
        order[:2] = [1, 0]
    sizes = [values[k].shape[0] for k in order]
    result = []
    for number, value in enumerate(values):
        dims: list[tuple[Axis, ...]] = [(c.trace.axis(size),) for size in sizes]
        dims[order.index(number)] = value.dims[0]
        result.append(Value(dims, value.expr))
    return tuple(result)


@lowers("tril", "triu")
def triangle(c: Call, input: Value, diagonal: int = 0) -> Value:
    row, column = (position(c.trace, d) for d in input.dims[-2:])
    limit = row + as_size(diagonal)
    keep = apply("le" if c.op == "tril" else "ge", column, limit)
    return Value(input.dims, where(keep, input.expr.wide(), 0).stored(c.out, exact=True))


@lowers("pixel_shuffle", "pixel_unshuffle", "channel_shuffle")
def pixel_shuffle(c: Call, input: Value, factor: Any) -> Value:
    by = as_size(factor)
    *batch, channels, height, width = input.shape
    if c.op == "channel_shuffle":
        split, order = [by, channels // by, height, width], [1, 0, 2, 3]
        shape = [channels, height, width]
    elif c.op == "pixel_shuffle":
        split, order = [channels // (by * by), by, by, height, width], [0, 3, 1, 4, 2]
        shape = [split[0], height * by, width * by]
    else:
        split, order = [channels, height // by, by, width // by, by], [0, 2, 4, 1, 3]
        shape = [times([channels, by, by]), split[1], split[3]]
    return regroup(_reordered(regroup(input, [*batch, *split]), order), [*batch, *shape])


def _reordered(value: Value, order: list[int]) -> Value:
    """The last dimensions in another order."""
    first = len(value.dims) - len(order)
    return Value([*value.dims[:first], *(value.dims[first + k] for k in order)], value.expr)


@lowers("unfold")
def unfold(c: Call, input: Value, *args: Any, **kwargs: Any) -> Value:
    """The method, windows along a dimension; or the function of torch.nn.functional, patches of an image."""
    is_method = len(args) + len(kwargs) == 3 and kwargs.keys() <= {"dimension", "size", "step"}
    return (_windows if is_method else _patches)(c, input, *args, **kwargs)


def _windows(c: Call, value: Value, dimension: int, size: Any, step: Any, dilation: Any = 1) -> Value:
    """Windows along a dimension, their elements `apart` from each other in a new last one."""
    t, dim = c.trace, wrap(dimension, len(value.dims))
    have, long, by, away = value.shape[dim], as_size(size), as_size(step), as_size(dilation)
    span = long
    if away.text != "1":
        span = t.size(away.hint * (long.hint - 1) + 1, f"({away.text} * ({long.text} - 1) + 1)")
    count = t.size((have.hint - span.hint) // by.hint + 1, f"(({have} - {span.text}) // {by.text} + 1)")
    t.guard(f"{span.text} <= {have}")
    outer, inner = t.axis(count), t.axis(long)
    read = read_at(value, dim, outer, t.index(outer) * by + t.index(inner) * away)
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
    *batch, channels, down, across, high, wide = value.refresh().shape
    sizes = [*batch, times([channels, high, wide]), down * across]
    return regroup(_reordered(value, [0, 3, 4, 1, 2]), sizes)


@lowers("zeros", "ones", "full", "new_zeros", "new_ones", "new_full")
def full(c: Call, *size: Any, **kwargs: Any) -> Value:
    number: Number = 1 if c.op.endswith("ones") else kwargs.get("fill_value", 0)
    if c.op.startswith("new"):
        size = size[1:]
    if c.op.endswith("full") and "fill_value" not in kwargs:
        *size, number = size  # type: ignore[assignment]
    sizes: list[Size] = [as_size(s) for s in int_list(*size)]
    return Value([(c.trace.axis(s),) for s in sizes], c.constant(number).expr)
