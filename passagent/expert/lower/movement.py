"""Views, and reads at indices that are computed or loaded: nothing is computed, indices are rewritten."""

from __future__ import annotations

from typing import Any

import torch

from passagent.expert.lower.call import (
    OPS,
    Call,
    broadcast,
    int_list,
    lowers,
    piece,
    position,
    read_at,
    regroup,
    wrap,
)
from passagent.expert.lower.expressions import FLOATING, Axis, Expr, Value, apply, parts
from passagent.expert.lower.formulas import where
from passagent.expert.lower.symbolic_sizes import Size, as_size, fixed, times


def _sizes(*shape: Any) -> list[Size]:
    """The sizes that are named one by one, as a list, or by a tensor that has them."""
    if isinstance(shape[0], Value):
        return shape[0].refresh().shape
    return [as_size(s) for s in int_list(*shape)]


@lowers("view", "reshape", "unsafe_view", "_unsafe_view", "view_as", "reshape_as")
def view(c: Call, input: Value, *shape: Any) -> Value:
    return regroup(input, complete(c, input, _sizes(*shape)))


def complete(c: Call, input: Value, sizes: list[Size]) -> list[Size]:
    """Sizes with -1 filled in."""
    holes = [k for k, s in enumerate(sizes) if s.hint == -1]
    if not holes:
        return sizes
    if not sizes[holes[0]].constant:
        c.trace.guard(f"{sizes[holes[0]].text} == -1")
    value = input.refresh()
    old = value.shape
    rest = [s for k, s in enumerate(sizes) if k not in holes]
    # Leading and trailing dimensions that stay cancel, which keeps the text of the free size short.
    if old and rest and old[-1].hint == sizes[-1].hint != -1:
        c.trace.equal(old[-1], rest[-1])
        return [*complete(c, Value(value.dims[:-1], value.expr), sizes[:-1]), sizes[-1]]
    if old and rest and old[0].hint == sizes[0].hint != -1:
        c.trace.equal(old[0], rest[0])
        return [sizes[0], *complete(c, Value(value.dims[1:], value.expr), sizes[1:])]
    total, partial = times(old), times(rest)
    return [total // partial if k in holes else s for k, s in enumerate(sizes)]


@lowers("flatten")
def flatten(c: Call, input: Value, start_dim: int = 0, end_dim: int = -1) -> Value:
    dims, rank = input.dims, len(input.dims)
    if rank == 0:
        return Value([()], input.expr)
    first, last = wrap(start_dim, rank), wrap(end_dim, rank)
    middle = tuple(a for d in dims[first : last + 1] for a in d)
    return Value([*dims[:first], middle, *dims[last + 1 :]], input.expr)


@lowers("unflatten")
def unflatten(c: Call, input: Value, dim: int, sizes: Any) -> Value:
    shape, dim = input.shape, wrap(dim, len(input.dims))
    new = complete(c, Value([input.dims[dim]], input.expr), [as_size(s) for s in sizes])
    return regroup(input, [*shape[:dim], *new, *shape[dim + 1 :]])


@lowers("unsqueeze")
def unsqueeze(c: Call, input: Value, dim: int) -> Value:
    dims = list(input.dims)
    dims.insert(wrap(dim, len(dims) + 1), ())
    return Value(dims, input.expr)


@lowers("squeeze")
def squeeze(c: Call, input: Value, dim: Any = None) -> Value:
    rank = len(input.dims)
    chosen = range(rank) if dim is None else [wrap(d, rank) for d in int_list(dim)]
    gone = {k for k in chosen if input.shape[k].hint == 1}
    for k in chosen:
        if k not in gone:
            c.trace.guard(f"{input.shape[k].text} != 1")
        for axis in input.dims[k] if k in gone else ():
            c.trace.drop(axis)
    return Value([d for k, d in enumerate(input.dims) if k not in gone], input.expr)


@lowers("permute", "movedim", "moveaxis", "transpose", "swapaxes", "swapdims", "t")
def permute(c: Call, input: Value, *args: Any, **named: Any) -> Value:
    """Dimensions in another order, which torch's own method tells by a tensor of that rank."""
    lengths = torch.empty(list(range(2, len(input.dims) + 2)), device="meta")
    order = [n - 2 for n in getattr(lengths, c.op)(*args, **named).shape]
    return Value([input.dims[d] for d in order], input.expr)


@lowers("expand", "broadcast_to", "expand_as")
def expand(c: Call, input: Value, *shape: Any) -> Value:
    sizes = _sizes(*shape)
    dims: list[tuple[Axis, ...]] = [()] * (len(sizes) - len(input.dims)) + input.dims
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
    return Value(result, input.expr).refresh()


@lowers("getitem", "__getitem__")
def getitem(c: Call, input: Any, index: Any) -> Any:
    if isinstance(input, tuple | list):
        return input[index] if isinstance(input[index], Value) else input[index]()
    items = list(index) if isinstance(index, tuple | list) else [index]
    used = sum(i is not None and i is not Ellipsis for i in items)
    if Ellipsis in items:
        gap = items.index(Ellipsis)
        items[gap : gap + 1] = [slice(None)] * (len(input.dims) - used)
    if any(isinstance(i, Value) for i in items):
        return index_by(c, input, items)
    value, dim = input, 0
    for item in items:
        if item is None:
            value, dim = unsqueeze(c, value, dim), dim + 1
        elif isinstance(item, slice):
            value, dim = narrow(c, value, dim, item), dim + 1
        else:
            value = select(c, value, dim, item)
    return value


@lowers("select")
def select(c: Call, input: Value, dim: int, index: Any) -> Value:
    dim = wrap(dim, len(input.dims))
    have, at = input.shape[dim], as_size(index)
    place = have + at if at.hint < 0 else at
    if at.hint < 0:
        c.trace.guard(f"{at.text} < 0")
    elif not at.constant:
        c.trace.guard(f"0 <= {at.text}")
    c.trace.guard(f"{at.text} < {have}")
    return read_at(input, dim, None, c.trace.integer(place))


def narrow(c: Call, value: Value, dim: int, item: slice) -> Value:
    """`value[..., item, ...]` on dimension `dim`."""
    have = value.shape[dim]
    start = bound(c, item.start, have, fixed(0))
    stop = bound(c, item.stop, have, have)
    step = as_size(1 if item.step is None else item.step)
    if start.text == "0" and str(stop) == str(have) and step.text == "1":
        return value
    return strided(c, value, dim, start, stop, step)


def strided(c: Call, value: Value, dim: int, start: Size, stop: Size, step: Size) -> Value:
    count = max(0, -(-(stop.hint - start.hint) // step.hint))
    length = stop - start
    if step.text != "1":
        is_known = length.constant and step.constant
        text = f"(-(({start} - {stop}) // {step.text}))"
        length = fixed(count) if is_known else c.trace.size(count, text)
    c.trace.guard(f"{length} > 0")
    return piece(value, dim, start, length, step)


def bound(c: Call, value: Any, size: Size, default: Size) -> Size:
    """A bound of a slice, between 0 and size."""
    if value is None:
        return default
    limit = as_size(value)
    if limit.hint < 0:
        c.trace.guard(f"-{size} <= {limit.text} < 0")
        return size + limit
    if limit.text == "0":
        return limit
    if limit.hint >= size.hint:
        c.trace.guard(f"{limit.text} >= {size}")
        return size
    c.trace.guard(f"0 <= {limit.text} < {size}")
    return limit


@lowers("chunk", "tensor_split")
def chunk(c: Call, input: Value, chunks: int, dim: int = 0) -> tuple[Value, ...]:
    dim = wrap(dim, len(input.dims))
    return _pieces(input, dim, [input.shape[dim] // chunks] * chunks)


@lowers("split")
def split(c: Call, input: Value, split_size_or_sections: Any, dim: int = 0) -> tuple[Value, ...]:
    dim = wrap(dim, len(input.dims))
    have, sections = input.shape[dim], split_size_or_sections
    if isinstance(sections, list | tuple):
        sizes = [as_size(s) for s in sections]
        total = f"({' + '.join(s.text for s in sizes)})"
        c.trace.equal(have, c.trace.size(sum(s.hint for s in sizes), total))
        return _pieces(input, dim, sizes)
    size = as_size(sections)
    return _pieces(input, dim, [size] * c.trace.constant(have // size))


@lowers("unbind")
def unbind(c: Call, input: Value, dim: int = 0) -> tuple[Value, ...]:
    dim = wrap(dim, len(input.dims))
    count = c.trace.constant(input.shape[dim])
    return tuple(read_at(input, dim, None, c.trace.integer(k)) for k in range(count))


def _pieces(value: Value, dim: int, sizes: list[Size]) -> tuple[Value, ...]:
    result, start = list[Value](), fixed(0)
    for size in sizes:
        result.append(piece(value, dim, start, size))
        start = start + size
    return tuple(result)


@lowers("embedding")
def embedding(c: Call, input: Value, weight: Value, *args: Any, **kwargs: Any) -> Value:
    if (len(args) > 1 and args[1] is not None) or kwargs.get("max_norm") is not None:
        raise c.fail("max_norm")
    return gather_rows(c, weight, 0, input)


def gather_rows(c: Call, table: Value, dim: int, index: Value) -> Value:
    """`table` read along `dim` at the elements of `index`, whose dimensions take the place of `dim`."""
    _is_stored(c, table)
    read = read_at(table, dim, None, checked(index.expr.cast("int64"), table.shape[dim]))
    read.dims[dim:dim] = index.dims
    return read


def checked(index: Expr, size: Size) -> Expr:
    """An index that the kernel raises for if it is not below `size`: one that comes of data, as in eager.

    One that is computed along an axis is kept inside on the CPU, where all are checked before anything else.
    """
    t, kinds = index.trace, {e.kind for e in parts(index)}
    if "load" not in kinds:
        return index
    if t.target == "cuda":
        return apply("checked", index, size)
    if "reduce" in kinds:
        return apply("index_clamp", index, size + -1)
    t.outside[((index < 0) | (index >= size)).cast("int64")] = None
    return index


def _is_stored(c: Call, table: Value) -> None:
    """A computed table would be computed again for each element that is read of it."""
    if table.expr.kind != "load":
        raise c.fail("from a computed table")


@lowers("gather")
def gather(c: Call, input: Value, dim: int, index: Value, sparse_grad: bool = False) -> Value:
    _is_stored(c, input)
    dim = wrap(dim, len(input.dims))
    places: list[Expr] = [position(c.trace, d) for d in index.dims]
    places[dim] = checked(index.expr.cast("int64"), input.shape[dim])
    for d, have in enumerate(input.shape):
        want = index.shape[d]
        if d != dim:
            c.trace.guard(f"{want} <= {have}")
    value = input
    for place in places:
        value = read_at(value, 0, None, place)
    return Value(index.dims, value.expr)


def index_by(c: Call, value: Value, items: list[Any]) -> Value:
    """`value[items]` with tensors of integers among the items, and `:` in all other places."""
    items += [slice(None)] * (len(value.dims) - sum(i is not None for i in items))
    at = [k for k, item in enumerate(items) if isinstance(item, Value)]
    if any(not (isinstance(i, Value) or i == slice(None)) for i in items):
        raise c.fail("by tensors beside other numbers than :")
    if any(items[k].dtype in {*FLOATING, "bool", "uint8"} for k in at):
        raise c.fail("by a mask")
    _is_stored(c, value)
    dims, indices = broadcast([items[k] for k in at])
    value = value.refresh()
    other_dims = [d for k, d in enumerate(value.dims) if k not in at]
    for k, part in reversed(list(zip(at, indices, strict=True))):
        have, index = value.shape[k], part.cast("int64")
        index = where(index < 0, index + have, index)
        value = read_at(value, k, None, checked(index, have))
    together = at == list(range(at[0], at[-1] + 1))
    first = at[0] if together else 0
    return Value([*other_dims[:first], *dims, *other_dims[first:]], value.expr)


@lowers("one_hot")
def one_hot(c: Call, input: Value, num_classes: Any) -> Value:
    count = as_size(num_classes)
    axis = c.trace.axis(count)
    index = checked(input.expr.cast("int64"), count)
    return Value([*input.dims, (axis,)], apply("eq", index, c.trace.index(axis)).cast("int64"))


OPS["narrow"] = lambda c, input, dim, start, length: strided(
    c, input, wrap(dim, len(input.dims)), as_size(start), as_size(start) + length, fixed(1)
)
OPS["index_select"] = lambda c, input, dim, index: gather_rows(c, input, wrap(dim, len(input.dims)), index)
