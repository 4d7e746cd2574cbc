"""Views and index arithmetic: nothing is computed, indices are rewritten."""

from __future__ import annotations

from typing import Any

import torch

from passagent.models.expert.ir import Axis, Cat, Expr, Size, Unsupported, Value, fixed
from passagent.models.expert.lowering import Call, Number, compute_type, int_list, lowers, wrap
from passagent.models.expert.shapes import broadcast, read_at, regroup, whole


def as_size(value: Any) -> Size:
    if isinstance(value, Size):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return fixed(value)
    raise Unsupported("size", f"{value!r} is not known before the call")


@lowers("view", "reshape", "unsafe_view", "_unsafe_view")
def view(c: Call, input: Value, *shape: Any) -> Value:
    sizes = [as_size(s) for s in int_list(*shape)]
    return regroup(c.trace, input, complete(c, input, sizes))


def complete(c: Call, input: Value, sizes: list[Size]) -> list[Size]:
    """Sizes with -1 filled in."""
    holes = [k for k, s in enumerate(sizes) if s.hint == -1]
    if not holes:
        return sizes
    if not sizes[holes[0]].constant:
        c.trace.guard(f"{sizes[holes[0]].text} == -1")
    value = c.trace.refresh(input)
    old = c.trace.shape(value)
    rest = [s for k, s in enumerate(sizes) if k not in holes]
    # Leading and trailing dimensions that stay cancel, which keeps the text of the free size short.
    while old and rest and old[-1].hint == sizes[-1].hint != -1 and rest and sizes[-1] is rest[-1]:
        c.trace.equal(old[-1], rest[-1])
        return [*complete(c, Value(value.dims[:-1], value.expr), sizes[:-1]), sizes[-1]]
    if old and rest and old[0].hint == sizes[0].hint != -1:
        c.trace.equal(old[0], rest[0])
        return [sizes[0], *complete(c, Value(value.dims[1:], value.expr), sizes[1:])]
    total, known = c.trace.times(old), c.trace.times(rest)
    return [c.trace.divide(total, known) if k in holes else s for k, s in enumerate(sizes)]


@lowers("reshape_as", "view_as")
def view_as(c: Call, input: Value, other: Value) -> Value:
    return regroup(c.trace, input, c.trace.shape(c.trace.refresh(other)))


@lowers("flatten")
def flatten(c: Call, input: Value, start_dim: int = 0, end_dim: int = -1) -> Value:
    value = c.trace.refresh(input)
    rank = len(value.dims)
    if rank == 0:
        return Value([()], value.expr)
    first, last = wrap(start_dim, rank), wrap(end_dim, rank)
    middle = tuple(a for d in value.dims[first : last + 1] for a in d)
    return Value([*value.dims[:first], middle, *value.dims[last + 1 :]], value.expr)


@lowers("unflatten")
def unflatten(c: Call, input: Value, dim: int, sizes: Any) -> Value:
    value = c.trace.refresh(input)
    shape = c.trace.shape(value)
    dim = wrap(dim, len(shape))
    new = complete(c, Value([value.dims[dim]], value.expr), [as_size(s) for s in sizes])
    return regroup(c.trace, value, [*shape[:dim], *new, *shape[dim + 1 :]])


@lowers("unsqueeze")
def unsqueeze(c: Call, input: Value, dim: int) -> Value:
    dims = list(input.dims)
    dims.insert(wrap(dim, len(dims) + 1), ())
    return Value(dims, input.expr)


@lowers("squeeze")
def squeeze(c: Call, input: Value, dim: Any = None) -> Value:
    value = c.trace.refresh(input)
    rank = len(value.dims)
    chosen = (
        range(rank)
        if dim is None
        else [wrap(d, rank) for d in (dim if isinstance(dim, tuple | list) else [dim])]
    )
    gone = {k for k in chosen if c.trace.size_of(value.dims[k]).hint == 1}
    for k in chosen:
        size = c.trace.size_of(value.dims[k])
        if k in gone:
            for axis in value.dims[k]:
                c.trace.drop(axis)
        else:
            c.trace.guard(f"{size.text} != 1")
    return Value([d for k, d in enumerate(value.dims) if k not in gone], value.expr)


@lowers("permute")
def permute(c: Call, input: Value, *dims: Any) -> Value:
    order = int_list(*dims)
    return Value([input.dims[wrap(d, len(order))] for d in order], input.expr)


@lowers("transpose", "swapaxes")
def transpose(c: Call, input: Value, dim0: int, dim1: int) -> Value:
    dims = list(input.dims)
    a, b = wrap(dim0, len(dims)), wrap(dim1, len(dims))
    dims[a], dims[b] = dims[b], dims[a]
    return Value(dims, input.expr)


@lowers("t")
def t(c: Call, input: Value) -> Value:
    return Value(list(reversed(input.dims)), input.expr)


@lowers("expand", "broadcast_to")
def expand(c: Call, input: Value, *shape: Any) -> Value:
    sizes = [as_size(s) for s in int_list(*shape)]
    return _expand(c, input, sizes)


@lowers("expand_as")
def expand_as(c: Call, input: Value, other: Value) -> Value:
    return _expand(c, input, c.trace.shape(c.trace.refresh(other)))


def _expand(c: Call, input: Value, sizes: list[Size]) -> Value:
    value = c.trace.refresh(input)
    dims: list[tuple[Axis, ...]] = [()] * (len(sizes) - len(value.dims)) + value.dims
    result: list[tuple[Axis, ...]] = []
    for dim, size in zip(dims, sizes, strict=True):
        have = c.trace.size_of(dim)
        if size.hint == -1:
            result.append(dim)
        elif have.hint == size.hint and dim:
            c.trace.equal(have, size)
            result.append(dim)
        else:
            for axis in dim:
                c.trace.drop(axis)
            result.append((c.trace.axis(size),) if size.text != "1" else ())
    return c.trace.refresh(Value(result, value.expr))


@lowers("getitem", "__getitem__")
def getitem(c: Call, input: Any, index: Any) -> Any:
    if isinstance(input, tuple | list):
        return input[index]
    items = list(index) if isinstance(index, tuple | list) else [index]
    if any(isinstance(i, Value | list | torch.Tensor) for i in items):
        raise c.fail("indexing by a tensor")
    value = c.trace.refresh(input)
    used = sum(i is not None and i is not Ellipsis for i in items)
    if Ellipsis not in items:
        items.append(Ellipsis)
    dim = 0
    for item in items:
        if item is Ellipsis:
            dim += len(value.dims) - dim - used
        elif item is None:
            value = Value([*value.dims[:dim], (), *value.dims[dim:]], value.expr)
            dim += 1
        elif isinstance(item, slice):
            value = narrow(c, value, dim, item)
            dim += 1
            used -= 1
        else:
            value = select(c, value, dim, item)
            used -= 1
    return value


@lowers("select")
def select(c: Call, input: Value, dim: int, index: Any) -> Value:
    value = c.trace.refresh(input)
    dim = wrap(dim, len(value.dims))
    have, at = c.trace.size_of(value.dims[dim]), as_size(index)
    position = c.trace.integer(at)
    if at.hint < 0:
        position = c.trace.integer(
            Size(
                have.hint + at.hint,
                f"({c.trace.text(have)} + {at.text})"
                if at.text[0] != "-"
                else f"({c.trace.text(have)} - {at.text[1:]})",
            )
        )
        c.trace.guard(f"{at.text} < 0")
    elif not at.constant:
        c.trace.guard(f"0 <= {at.text}")
    c.trace.guard(f"{at.text} < {c.trace.text(have)}")
    return read_at(c.trace, value, dim, None, position)


def narrow(c: Call, value: Value, dim: int, item: slice) -> Value:
    """`value[..., item, ...]` on dimension `dim`."""
    value = c.trace.refresh(value)
    have = c.trace.size_of(value.dims[dim])
    start = bound(c, item.start, have, fixed(0))
    stop = bound(c, item.stop, have, have)
    step = as_size(1 if item.step is None else item.step)
    if step.hint <= 0:
        raise c.fail("a negative step")
    if start.text == "0" and c.trace.text(stop) == c.trace.text(have) and step.text == "1":
        return value
    return strided(c, value, dim, start, stop, step)


def strided(c: Call, value: Value, dim: int, start: Size, stop: Size, step: Size) -> Value:
    count = max(0, -(-(stop.hint - start.hint) // step.hint))
    a, b = c.trace.text(start), c.trace.text(stop)
    if a.isdigit() and b.isdigit() and step.constant:
        length = fixed(count)
    elif step.text == "1":
        length = Size(count, b if a == "0" else f"({b} - {a})")
    else:
        length = Size(count, f"(-(({a} - {b}) // {step.text}))")
    if count == 0:
        raise c.fail("an empty slice")
    c.trace.guard(f"{c.trace.text(length)} > 0")
    axis = c.trace.axis(length)
    index = c.trace.add(c.trace.mul(c.trace.index(axis), c.trace.integer(step)), c.trace.integer(start))
    return read_at(c.trace, value, dim, axis, index)


def bound(c: Call, value: Any, size: Size, default: Size) -> Size:
    """A bound of a slice, between 0 and size."""
    if value is None:
        return default
    limit, have = as_size(value), c.trace.text(size)
    if limit.hint < 0:
        if limit.hint < -size.hint:
            raise c.fail("a bound before the start")
        text = f"({have} - {limit.text[1:]})" if limit.constant else f"({have} + {limit.text})"
        c.trace.guard(f"-{have} <= {limit.text} < 0")
        return Size(size.hint + limit.hint, text)
    if limit.text == "0":
        return limit
    if limit.hint >= size.hint:
        c.trace.guard(f"{limit.text} >= {have}")
        return size
    c.trace.guard(f"0 <= {limit.text} < {have}")
    return limit


@lowers("narrow")
def narrow_method(c: Call, input: Value, dim: int, start: Any, length: Any) -> Value:
    first, count = as_size(start), as_size(length)
    end = Size(first.hint + count.hint, count.text if first.text == "0" else f"({first.text} + {count.text})")
    value = c.trace.refresh(input)
    return strided(c, value, wrap(dim, len(value.dims)), first, end, fixed(1))


@lowers("chunk")
def chunk(c: Call, input: Value, chunks: int, dim: int = 0) -> tuple[Value, ...]:
    value = c.trace.refresh(input)
    dim = wrap(dim, len(value.dims))
    have = c.trace.size_of(value.dims[dim])
    if not isinstance(chunks, int) or have.hint % chunks:
        raise c.fail("chunks of unequal size")
    return _pieces(c, value, dim, [c.trace.divide(have, fixed(chunks))] * chunks)


@lowers("split", "tensor_split")
def split(c: Call, input: Value, split_size_or_sections: Any, dim: int = 0) -> tuple[Value, ...]:
    value = c.trace.refresh(input)
    dim = wrap(dim, len(value.dims))
    have = c.trace.size_of(value.dims[dim])
    sections = split_size_or_sections
    if c.op == "tensor_split":
        if not isinstance(sections, int):
            raise c.fail("a list of indices")
        return chunk(c, value, sections, dim)
    if isinstance(sections, list | tuple):
        sizes = [as_size(s) for s in sections]
        c.trace.equal(have, Size(sum(s.hint for s in sizes), f"({' + '.join(s.text for s in sizes)})"))
        return _pieces(c, value, dim, sizes)
    size = as_size(sections)
    if have.hint % size.hint:
        raise c.fail("pieces of unequal size")
    count = c.trace.divide(have, size)
    c.trace.equal(count, fixed(count.hint))
    return _pieces(c, value, dim, [size] * count.hint)


@lowers("unbind")
def unbind(c: Call, input: Value, dim: int = 0) -> tuple[Value, ...]:
    value = c.trace.refresh(input)
    dim = wrap(dim, len(value.dims))
    have = c.trace.size_of(value.dims[dim])
    c.trace.equal(have, fixed(have.hint))
    return tuple(read_at(c.trace, value, dim, None, c.trace.integer(k)) for k in range(have.hint))


def _pieces(c: Call, value: Value, dim: int, sizes: list[Size]) -> tuple[Value, ...]:
    result, start = [], fixed(0)
    for size in sizes:
        start_text, size_text = c.trace.text(start), c.trace.text(size)
        if start.text == "0":
            stop = size
        elif start_text.isdigit() and size_text.isdigit():
            stop = fixed(start.hint + size.hint)
        else:
            stop = Size(start.hint + size.hint, f"({start_text} + {size_text})")
        axis = c.trace.axis(size)
        index = c.trace.add(c.trace.index(axis), c.trace.integer(start))
        result.append(read_at(c.trace, value, dim, axis, index))
        start = stop
    return tuple(result)


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
    """Chosen element by element by the index along `dim`, and as pieces for an output that is stored piecewise."""
    t = c.trace
    dim = wrap(dim, len(tensors[0].dims))
    values = []
    for v in tensors:
        v = t.refresh(v)
        if len(v.dims) != len(tensors[0].dims):
            raise c.fail("tensors of different rank")
        values.append(v)
    # The other dimensions run together: broadcast values whose dimension `dim` is hidden in the expression.
    lengths = [t.size_of(v.dims[dim]) for v in values]
    hidden: list[tuple[Value, Axis]] = []
    for v, length in zip(values, lengths, strict=True):
        own = t.axis(length)
        read = read_at(t, v, dim, own, t.index(own))
        hidden.append((Value([d if k != dim else () for k, d in enumerate(read.dims)], read.expr), own))
    dims, parts = broadcast(t, [v for v, _ in hidden])
    total_text, offset = [t.text(n) for n in lengths], fixed(0)
    total = Size(sum(n.hint for n in lengths), f"({' + '.join(total_text)})")
    if all(x.isdigit() for x in total_text):
        total = fixed(total.hint)
    elif len(lengths) == 1:
        total = lengths[0]
    axis = t.axis(total)
    pieces: list[tuple[Value, Size]] = []
    result: Expr | None = None
    starts = []
    for length in lengths:
        starts.append(offset)
        texts = (t.text(offset), t.text(length))
        text = texts[1] if offset.text == "0" else f"({texts[0]} + {texts[1]})"
        offset = Size(offset.hint + length.hint, text)
        if all(x.isdigit() for x in texts):
            offset = fixed(offset.hint)
    for part, (_, own), length, start in reversed(
        list(zip(parts, [h for h in hidden], lengths, starts, strict=True))
    ):
        index = t.add(t.index(axis), t.mul(t.integer(-1), t.integer(start)))
        last = t.integer(
            Size(length.hint - 1, f"({t.text(length)} - 1)")
            if not length.constant
            else fixed(length.hint - 1)
        )
        t.guard(f"{t.text(length)} > 0")
        clamped = t.op("index_clamp", [index, last], "int64")
        read = c.wide(t.substitute(part, {own: clamped}))
        if result is None:
            result = read
        else:
            test = t.op("lt", [index, t.integer(length)], "bool")
            result = t.op("where", [test, read, result], compute_type(c.out))
        own_dims = [d if k != dim else (own,) for k, d in enumerate(dims)]
        pieces.insert(0, (Value(own_dims, part), start))
    assert result is not None
    final = [d if k != dim else (axis,) for k, d in enumerate(dims)]
    element = c.finish(result, c.out, exact=True)
    if len(values) > 1:
        own_parts = zip(hidden, parts, starts, strict=True)
        t.cats.append(Cat(axis, element, tuple((own, part, start) for (_, own), part, start in own_parts)))
    return Value(final, element, pieces, dim)


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
