"""Reading at indices that are themselves computed or loaded: embedding, gather, indexing by tensors."""

from __future__ import annotations

from typing import Any

from passagent.expert.expressions import ALONG, Expr, Size, Value, fixed, parts
from passagent.expert.lowering import FLOATING, Call, lowers, wrap
from passagent.expert.shapes import as_size, broadcast, position, read_at


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
