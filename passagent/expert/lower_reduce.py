"""Reductions over any dimensions, and scans along one."""

from __future__ import annotations

from functools import partial
from typing import Any

from passagent.expert.expressions import Axis, Expr, Size, Value
from passagent.expert.lowering import Call, Number, compute_type, lowers, wrap
from passagent.expert.shapes import as_size, broadcast, position, regroup, whole

NARROW = {"bool", "uint8", "int8", "int16", "int32"}
"""Integers that leave room for a position beside them in 64 bits."""
LAST = (1 << 31) - 1


def chosen(dim: Any, rank: int) -> list[int]:
    """Dimensions named by `dim`; None and () are all."""
    if dim is None or (isinstance(dim, tuple | list) and not dim):
        return list(range(rank))
    return sorted(wrap(d, rank) for d in (dim if isinstance(dim, tuple | list) else [dim]))


def over(c: Call, name: str, value: Value, dims: list[int], body: Any = None) -> Value:
    """Reduce (keeping dimensions of size one) in the compute type; the result is not rounded."""
    value = c.trace.refresh(value)
    axes: tuple[Axis, ...] = tuple(a for d in dims for a in value.dims[d])
    expr = c.wide(value.expr)
    if expr.dtype == "bool":
        expr = c.trace.cast(expr, "int64")
    expr = body(expr) if body else expr
    if axes:
        expr = c.trace.make("reduce", (name, axes), (expr,), expr.dtype)
    return Value([() if k in dims else d for k, d in enumerate(value.dims)], expr)


def count(c: Call, value: Value, dims: list[int], dtype: str) -> Expr:
    value = c.trace.refresh(value)
    return c.number(c.trace.times(c.trace.size_of(value.dims[d]) for d in dims), dtype)


def drop(value: Value, dims: list[int], keepdim: bool) -> Value:
    return value if keepdim else Value([d for k, d in enumerate(value.dims) if k not in dims], value.expr)


@lowers("sum")
def sum_(c: Call, input: Value, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Value:
    dims = chosen(dim, len(input.dims))
    compute = compute_type(c.out)
    source = Value(input.dims, c.trace.cast(input.expr, compute))
    # Eager sums in a tree; terms that cancel show the difference unless we add them more exactly.
    exact = compute == "float32"
    result = over(c, "sum", source, dims, (lambda x: c.trace.cast(x, "float64")) if exact else None)
    return drop(Value(result.dims, c.finish(c.trace.cast(result.expr, compute), c.out)), dims, keepdim)


@lowers("mean")
def mean(c: Call, input: Value, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Value:
    dims = chosen(dim, len(input.dims))
    total = over(c, "sum", Value(input.dims, c.trace.cast(input.expr, compute_type(c.out))), dims)
    return drop(Value(total.dims, c.finish(_mean(c, total.expr, input, dims), c.out)), dims, keepdim)


def _mean(c: Call, total: Expr, input: Value, dims: list[int]) -> Expr:
    """A sum over the number of its terms; on CUDA eager multiplies by the reciprocal."""
    terms = count(c, input, dims, total.dtype)
    return c.e("mul", total, c.e("div", 1.0, terms)) if c.target == "cuda" else c.e("div", total, terms)


@lowers("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d")
def adaptive_average(c: Call, input: Value, output_size: Any) -> Value:
    """To one element, or in windows of one size."""
    rank = int(c.op[-2])
    sizes = list(output_size) if isinstance(output_size, tuple | list) else [output_size] * rank
    value = c.trace.refresh(input)
    shape, first = c.trace.shape(value), len(value.dims) - rank
    if all(want == 1 for want in sizes):
        dims = list(range(first, first + rank))
        total = over(c, "sum", value, dims)
        return Value(total.dims, c.finish(_mean(c, total.expr, value, dims), c.out))
    if c.target == "cpu":
        raise c.fail("to more than one element is left to the library")
    split, windows = list[Size](shape[:first]), list[int]()
    for have, want in zip(shape[first:], sizes, strict=True):
        target_size = have if want is None else as_size(want)
        if have.hint % target_size.hint:
            raise c.fail("to windows of several sizes is left to the library")
        split += [target_size, c.trace.divide(have, target_size)]
        windows.append(len(split) - 1)
    value = regroup(c.trace, value, split)
    total = over(c, "sum", value, windows)
    average = Value(total.dims, c.finish(_mean(c, total.expr, value, windows), c.out))
    return drop(average, windows, keepdim=False)


@lowers("amax", "max")
def amax(c: Call, input: Value, dim: Any = None, keepdim: bool = False) -> Any:
    return _extreme(c, "max", input, dim, keepdim)


@lowers("amin", "min")
def amin(c: Call, input: Value, dim: Any = None, keepdim: bool = False) -> Any:
    return _extreme(c, "min", input, dim, keepdim)


def _extreme(c: Call, name: str, input: Value, dim: Any, keepdim: bool) -> Any:
    if isinstance(dim, Value):
        return c.pointwise(f"{name}imum", input, dim, exact=True)
    if not c.op.startswith("a") and dim is not None:
        return _along(c, name, input, dim, keepdim), partial(_first, c, name, input, dim, keepdim)
    return _along(c, name, input, dim, keepdim)


def _along(c: Call, name: str, input: Value, dim: Any, keepdim: bool) -> Value:
    dims = chosen(dim, len(input.dims))
    result = over(c, name, input, dims)
    return drop(Value(result.dims, c.finish(result.expr, c.out, exact=True)), dims, keepdim)


@lowers("argmax", "argmin")
def argmax(c: Call, input: Value, dim: Any = None, keepdim: bool = False) -> Value:
    return _first(c, c.op.removeprefix("arg"), input, dim, keepdim)


def _first(c: Call, name: str, input: Value, dim: Any, keepdim: bool) -> Value:
    """Where the first extreme stands: one maximum, of integers that hold an element's rank and its position.

    Of equal ranks that with the lower position is larger.
    """
    t, dims = c.trace, chosen(dim, len(input.dims))
    value = t.refresh(input)
    axes = tuple(a for d in dims for a in value.dims[d])
    if not value.expr.axes:
        raise c.fail("the position of an extreme of a single number is not lowered")
    length = t.text(t.size_of(axes))
    if not length.isdigit():
        t.guard(f"{length} > 0")
        t.guard(f"{length} <= {LAST}")
    behind = c.e("sub", LAST, position(t, axes))
    key = c.e("add", c.e("mul", _rank(c, name, value.expr), 1 << 32), behind)
    extreme = over(c, "max", Value(value.dims, key), dims)
    low = t.cast(t.cast(extreme.expr, "int32"), "int64")
    return drop(Value(extreme.dims, c.e("sub", LAST, low)), dims, keepdim)


def _rank(c: Call, name: str, element: Expr) -> Expr:
    """An integer of 32 bits that is the larger, the earlier eager takes an element for the extreme."""
    x = c.wide(element)
    if element.dtype in NARROW:
        x = c.trace.cast(x, "int64")
        return x if name == "max" else c.e("sub", -1, x)
    if x.dtype != "float32":
        raise c.fail(f"the position of an extreme of {element.dtype} is not lowered")
    bits = c.trace.op("bits", [x if name == "max" else c.e("neg", x)], "int32")
    rank = c.e("where", c.e("lt", bits, 0), c.e("sub", -LAST - 1, bits), bits)
    return c.trace.cast(c.e("where", c.e("ne", x, x), LAST, rank), "int64")  # NaN comes before all others


@lowers("var")
def var(
    c: Call, input: Value, dim: Any = None, unbiased: bool = True, keepdim: bool = False, **kwargs: Any
) -> Value:
    dims = chosen(dim, len(input.dims))
    correction = kwargs.get("correction", 1 if unbiased else 0)
    _, square = moments(c, input, dims)
    n = count(c, input, dims, square.expr.dtype)
    expr = c.e("div", square.expr, c.e("sub", n, float(correction)))
    return drop(Value(square.dims, c.finish(expr, c.out)), dims, keepdim)


def moments(c: Call, value: Value, dims: list[int]) -> tuple[Value, Value]:
    """(mean, sum of squared deviations), kept dimensions, in the compute type."""
    total = over(c, "sum", value, dims)
    average = Value(total.dims, c.e("div", total.expr, count(c, value, dims, total.expr.dtype)))
    shape, (x, m) = broadcast(c.trace, [value, average])
    centred = c.e("sub", c.wide(x), m)
    return average, over(c, "sum", Value(shape, centred), dims, lambda d: c.e("mul", d, d))


@lowers("std")
def std(
    c: Call, input: Value, dim: Any = None, unbiased: bool = True, keepdim: bool = False, **kwargs: Any
) -> Value:
    return _deviation(c, var(c, input, dim, unbiased, keepdim, **kwargs))


def _deviation(c: Call, variance: Value) -> Value:
    wide = c.trace.resolve(variance.expr)
    rounded = wide.data == "cast" and wide.args[0].dtype == "float32"  # taken before it was rounded
    return Value(variance.dims, c.finish(c.e("sqrt", wide.args[0] if rounded else wide), c.out))


@lowers("var_mean", "std_mean")
def var_mean(
    c: Call, input: Value, dim: Any = None, unbiased: bool = True, keepdim: bool = False, **kwargs: Any
) -> tuple[Value, Value]:
    variance = var(c, input, dim, unbiased, keepdim, **kwargs)
    spread = _deviation(c, variance) if c.op == "std_mean" else variance
    return spread, mean(c, input, dim, keepdim)


@lowers("any", "all")
def any_(c: Call, input: Value, dim: Any = None, keepdim: bool = False) -> Value:
    dims = chosen(dim, len(input.dims))
    zero = c.number(0, compute_type(input.dtype))
    true = c.trace.cast(c.e("ne", c.wide(c.trace.refresh(input).expr), zero), "float32")
    extreme = over(c, "max" if c.op == "any" else "min", Value(input.dims, true), dims)
    return drop(Value(extreme.dims, c.finish(c.trace.cast(extreme.expr, "bool"), c.out)), dims, keepdim)


@lowers("cumsum", "cumprod")
def scan(c: Call, input: Value, dim: int, dtype: Any = None) -> Value:
    """A running sum or product, which is not rounded before it is stored."""
    if c.target == "cpu":
        raise c.fail("is left to the vendor library")
    t = c.trace
    value = t.refresh(Value(input.dims, t.cast(input.expr, compute_type(c.out))))
    axis = None
    if value.dims:
        value, axis = whole(t, value, wrap(dim, len(value.dims)))
    if axis is None:
        return Value(value.dims, c.finish(value.expr, c.out))
    along = t.axis(axis.size)
    body = t.substitute(value.expr, {axis: t.index(along)})
    expr = t.make("scan", (c.op.rstrip("_"), (along,)), (body, t.index(axis)), body.dtype)
    return Value(value.dims, c.finish(expr, c.out))


@lowers("logsumexp")
def logsumexp(c: Call, input: Value, dim: Any, keepdim: bool = False) -> Value:
    """In eager's own steps, each of which rounds; integers are made floats first."""
    dims = chosen(dim, len(input.dims))
    input = c.pointwise(lambda x: x, input)
    top = over(c, "max", input, dims)
    test = c.e("lt", c.e("abs", top.expr), float("inf"))
    finite = Value(top.dims, c.finish(c.e("where", test, top.expr, 0.0), c.out, exact=True))
    power = c.pointwise(c.exp_added, c.pointwise("sub", input, finite))
    total = over(c, "sum", power, dims)
    total = Value(total.dims, c.finish(total.expr, c.out))
    return drop(c.pointwise("add", c.pointwise("log", total), finite), dims, keepdim)


@lowers("norm", "linalg_vector_norm")
def norm(
    c: Call, input: Value, p: Any = 2, dim: Any = None, keepdim: bool = False, dtype: Any = None, **kw: Any
) -> Value:
    if p not in (1, 2, "fro", None, float("inf")) or dtype is not None or kw:
        raise c.fail(f"of order {p}")
    dims = chosen(dim, len(input.dims))
    if p in (1, float("inf")):
        total = over(c, "sum" if p == 1 else "max", input, dims, lambda x: c.e("abs", x))
        return drop(Value(total.dims, c.finish(total.expr, c.out)), dims, keepdim)
    total = over(c, "sum", input, dims, lambda x: c.e("mul", x, x))
    return drop(Value(total.dims, c.finish(c.e("sqrt", total.expr), c.out)), dims, keepdim)


@lowers("normalize")
def normalize(c: Call, input: Value, p: Any = 2.0, dim: int = 1, eps: Number = 1e-12) -> Value:
    length = norm(c, input, p, dim, True)
    return c.pointwise("div", input, c.pointwise("maximum", length, eps, exact=True))
