"""Views and index arithmetic: nothing is computed, indices are rewritten."""

from __future__ import annotations

from typing import Any

import torch

from passagent.expert.expressions import Axis, Size, Value, fixed
from passagent.expert.lower_gather import index_by
from passagent.expert.lowering import Call, int_list, lowers, wrap
from passagent.expert.shapes import as_size, read_at, regroup


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
    total, partial = c.trace.times(old), c.trace.times(rest)
    return [c.trace.divide(total, partial) if k in holes else s for k, s in enumerate(sizes)]


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


@lowers("movedim", "moveaxis")
def movedim(c: Call, input: Value, source: Any, destination: Any) -> Value:
    rank = len(input.dims)
    moved = [wrap(d, rank) for d in int_list(source)]
    places = [wrap(d, rank) for d in int_list(destination)]
    rest = [k for k in range(rank) if k not in moved]
    order = [0] * rank
    for place, d in zip(places, moved, strict=True):
        order[place] = d
    for place, d in zip([k for k in range(rank) if k not in places], rest, strict=True):
        order[place] = d
    return Value([input.dims[d] for d in order], input.expr)


@lowers("transpose", "swapaxes", "swapdims")
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
        return input[index] if isinstance(input[index], Value) else input[index]()
    items = list(index) if isinstance(index, tuple | list) else [index]
    if any(isinstance(i, list | torch.Tensor) for i in items):
        raise c.fail("indexing by a list")
    if any(isinstance(i, Value) for i in items):
        return index_by(c, input, items)
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
