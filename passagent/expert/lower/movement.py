"""Views, and reads at indices that are computed or loaded: nothing is computed, indices are rewritten."""

from __future__ import annotations

from typing import Any

import torch

from passagent.expert.lower.call import FLOATING, Call, int_list, lowers, wrap
from passagent.expert.lower.expressions import ALONG, Axis, Expr, Size, Value, fixed, parts
from passagent.expert.lower.shapes import as_size, broadcast, position, read_at, regroup


def _sizes(c: Call, *shape: Any) -> list[Size]:
    """The sizes that are named one by one, as a list, or by a tensor that has them."""
    if isinstance(shape[0], Value):
        return c.trace.shape(c.trace.refresh(shape[0]))
    return [as_size(s) for s in int_list(*shape)]


@lowers("view", "reshape", "unsafe_view", "_unsafe_view", "view_as", "reshape_as")
def view(c: Call, input: Value, *shape: Any) -> Value:
    return regroup(c.trace, input, complete(c, input, _sizes(c, *shape)))


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
    chosen = range(rank) if dim is None else [wrap(d, rank) for d in int_list(dim)]
    gone = {k for k in chosen if c.trace.size_of(value.dims[k]).hint == 1}
    for k in chosen:
        size = c.trace.size_of(value.dims[k])
        if k in gone:
            for axis in value.dims[k]:
                c.trace.drop(axis)
        else:
            c.trace.guard(f"{size.text} != 1")
    return Value([d for k, d in enumerate(value.dims) if k not in gone], value.expr)


@lowers("permute", "movedim", "moveaxis", "transpose", "swapaxes", "swapdims", "t")
def permute(c: Call, input: Value, *args: Any, **named: Any) -> Value:
    """Dimensions in another order, which torch's own method tells by a tensor of that rank."""
    lengths = torch.empty(list(range(2, len(input.dims) + 2)), device="meta")
    order = [n - 2 for n in getattr(lengths, c.op)(*args, **named).shape]
    return Value([input.dims[d] for d in order], input.expr)


@lowers("expand", "broadcast_to", "expand_as")
def expand(c: Call, input: Value, *shape: Any) -> Value:
    sizes = _sizes(c, *shape)
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
    value, dim, have = c.dimension(input, dim)
    at = as_size(index)
    place = c.trace.plus(have, at) if at.hint < 0 else at
    if at.hint < 0:
        c.trace.guard(f"{at.text} < 0")
    elif not at.constant:
        c.trace.guard(f"0 <= {at.text}")
    c.trace.guard(f"{at.text} < {c.trace.text(have)}")
    return read_at(c.trace, value, dim, None, c.trace.integer(place))


def narrow(c: Call, value: Value, dim: int, item: slice) -> Value:
    """`value[..., item, ...]` on dimension `dim`."""
    value, dim, have = c.dimension(value, dim)
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
    length = c.trace.minus(stop, start)
    if step.text != "1":
        length = (
            fixed(count)
            if length.constant and step.constant
            else Size(count, f"(-(({a} - {b}) // {step.text}))")
        )
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
        c.trace.guard(f"-{have} <= {limit.text} < 0")
        return c.trace.plus(size, limit)
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
    value, dim, _ = c.dimension(input, dim)
    return strided(c, value, dim, first, c.trace.plus(first, count), fixed(1))


@lowers("chunk", "tensor_split")
def chunk(c: Call, input: Value, chunks: int, dim: int = 0) -> tuple[Value, ...]:
    value, dim, have = c.dimension(input, dim)
    if not isinstance(chunks, int) or have.hint % chunks:
        raise c.fail("chunks of unequal size")
    return _pieces(c, value, dim, [c.trace.divide(have, fixed(chunks))] * chunks)


@lowers("split")
def split(c: Call, input: Value, split_size_or_sections: Any, dim: int = 0) -> tuple[Value, ...]:
    value, dim, have = c.dimension(input, dim)
    sections = split_size_or_sections
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
    value, dim, have = c.dimension(input, dim)
    c.trace.equal(have, fixed(have.hint))
    return tuple(read_at(c.trace, value, dim, None, c.trace.integer(k)) for k in range(have.hint))


def _pieces(c: Call, value: Value, dim: int, sizes: list[Size]) -> tuple[Value, ...]:
    result, start = [], fixed(0)
    for size in sizes:
        axis = c.trace.axis(size)
        index = c.trace.add(c.trace.index(axis), c.trace.integer(start))
        result.append(read_at(c.trace, value, dim, axis, index))
        start = c.trace.plus(start, size)
    return tuple(result)


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
    _is_stored(c, table)
    where = checked(c, t.cast(index.expr, "int64"), t.size_of(table.dims[dim]))
    read = read_at(t, table, dim, None, where)
    read.dims[dim:dim] = index.dims
    return read


def checked(c: Call, index: Expr, size: Size) -> Expr:
    """An index that the kernel raises for if it is not below `size`: one that comes of data, as in eager.

    One that is computed along an axis is kept inside on the CPU, where all are checked before anything else.
    """
    t, kinds = c.trace, {e.kind for e in parts(index)}
    if "load" not in kinds:
        return index
    if c.target == "cuda":
        return t.op("checked", [index, t.integer(size)], "int64")
    if kinds & ALONG:
        return t.op("index_clamp", [index, t.integer(t.plus(size, fixed(-1)))], "int64")
    low = t.op("lt", [index, t.integer(0)], "bool")
    high = t.op("ge", [index, t.integer(size)], "bool")
    t.outside[t.cast(t.op("or", [low, high], "bool"), "int64")] = None
    return index


def _is_stored(c: Call, table: Value) -> None:
    """A computed table would be computed again for each element that is read of it."""
    if c.trace.resolve(table.expr).kind != "load":
        raise c.fail("from a computed table")


@lowers("gather")
def gather(c: Call, input: Value, dim: int, index: Value, sparse_grad: bool = False) -> Value:
    t = c.trace
    table, index = t.refresh(input), t.refresh(index)
    _is_stored(c, table)
    dim = wrap(dim, len(table.dims))
    places: list[Expr] = [position(t, d) for d in index.dims]
    places[dim] = checked(c, t.cast(index.expr, "int64"), t.size_of(table.dims[dim]))
    for d, have in enumerate(t.shape(table)):
        want = t.size_of(index.dims[d])
        if d != dim:
            t.guard(f"{t.text(want)} <= {t.text(have)}")
    value = table
    for place in places:
        value = read_at(t, value, 0, None, place)
    return Value(index.dims, value.expr)


def index_by(c: Call, value: Value, items: list[Any]) -> Value:
    """`value[items]` with tensors of integers among the items, and `:` in all other places."""
    t = c.trace
    value = t.refresh(value)
    used = sum(i is not None and i is not Ellipsis for i in items)
    if items.count(Ellipsis) == 1:
        gap = items.index(Ellipsis)
        items[gap : gap + 1] = [slice(None)] * (len(value.dims) - used)
    items += [slice(None)] * (len(value.dims) - sum(i is not None for i in items))
    at = [k for k, item in enumerate(items) if isinstance(item, Value)]
    if any(not (isinstance(i, Value) or i == slice(None)) for i in items):
        raise c.fail("by tensors beside other numbers than :")
    if any(items[k].dtype in {*FLOATING, "bool", "uint8"} for k in at):
        raise c.fail("by a mask")
    _is_stored(c, value)
    dims, parts = broadcast(t, [items[k] for k in at])
    value = t.refresh(value)
    other_dims = [d for k, d in enumerate(value.dims) if k not in at]
    for k, part in reversed(list(zip(at, parts, strict=True))):
        have = t.size_of(value.dims[k])
        index = t.cast(part, "int64")
        from_end = t.add(index, t.integer(have))
        low = t.op("lt", [index, t.integer(0)], "bool")
        index = t.op("where", [low, from_end, index], "int64")
        value = read_at(t, value, k, None, checked(c, index, have))
    together = at == list(range(at[0], at[-1] + 1))
    first = at[0] if together else 0
    return Value([*other_dims[:first], *dims, *other_dims[first:]], value.expr)


@lowers("one_hot")
def one_hot(c: Call, input: Value, num_classes: Any = -1) -> Value:
    count = as_size(num_classes)
    if count.hint < 0:
        raise c.fail("with as many classes as the data tell")
    t = c.trace
    value = t.refresh(input)
    axis = t.axis(count)
    index = checked(c, t.cast(value.expr, "int64"), count)
    same = t.op("eq", [index, t.index(axis)], "bool")
    return Value([*value.dims, (axis,)], t.cast(same, "int64"))
