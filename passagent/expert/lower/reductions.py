"""Reductions over any dimensions, scans along one, softmax and normalisations."""

from __future__ import annotations

from functools import partial
from typing import Any

from passagent.expert.lower.call import (
    Call,
    Number,
    Term,
    apply,
    arguments,
    compute_type,
    grow,
    lowers,
    shrink,
    wrap,
)
from passagent.expert.lower.expressions import Axis, Expr, Size, Value
from passagent.expert.lower.formulas import fma, inverse_root
from passagent.expert.lower.pointwise import along
from passagent.expert.lower.shapes import as_size, broadcast, position, regroup, whole

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
    expr = body(Term(c, expr)).expr if body else expr
    if axes:
        expr = c.trace.make("reduce", (name, axes), (expr,), expr.dtype)
    return Value([() if k in dims else d for k, d in enumerate(value.dims)], expr)


def count(c: Call, value: Value, dims: list[int], dtype: str) -> Expr:
    value = c.trace.refresh(value)
    return c.number(c.trace.times(c.trace.size_of(value.dims[d]) for d in dims), dtype)


def drop(value: Value, dims: list[int], keepdim: bool) -> Value:
    return value if keepdim else Value([d for k, d in enumerate(value.dims) if k not in dims], value.expr)


def finished(c: Call, value: Value, dims: list[int], keepdim: bool, exact: bool = False) -> Value:
    """A reduction's result as eager stores it."""
    return drop(Value(value.dims, c.finish(value.expr, c.out, exact)), dims, keepdim)


@lowers("sum")
def sum_(c: Call, input: Value, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Value:
    dims, compute = chosen(dim, len(input.dims)), compute_type(c.out)
    source = Value(input.dims, c.trace.cast(input.expr, compute))
    # Eager sums in a tree; terms that cancel show the difference unless we add them more exactly.
    result = over(c, "sum", source, dims, _doubled if compute == "float32" else None)
    return finished(c, Value(result.dims, c.trace.cast(result.expr, compute)), dims, keepdim)


def _doubled(x: Term) -> Term:
    return Term(x.call, x.call.trace.cast(x.expr, "float64"))


@lowers("mean")
def mean(c: Call, input: Value, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Value:
    dims = chosen(dim, len(input.dims))
    total = over(c, "sum", Value(input.dims, c.trace.cast(input.expr, compute_type(c.out))), dims)
    return finished(c, _mean(c, total, input, dims), dims, keepdim)


def _mean(c: Call, total: Value, input: Value, dims: list[int]) -> Value:
    """A sum over the number of its terms; on CUDA eager multiplies by the reciprocal."""
    terms = count(c, input, dims, total.dtype)
    if c.target == "cuda":
        return Value(total.dims, c.e("mul", total.expr, c.e("div", 1.0, terms)))
    return Value(total.dims, c.e("div", total.expr, terms))


@lowers("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d")
def adaptive_average(c: Call, input: Value, output_size: Any) -> Value:
    """To one element, or in windows of one size."""
    rank = int(c.op[-2])
    sizes = list(output_size) if isinstance(output_size, tuple | list) else [output_size] * rank
    value = c.trace.refresh(input)
    shape, first = c.trace.shape(value), len(value.dims) - rank
    if all(want == 1 for want in sizes):
        dims = list(range(first, first + rank))
        return finished(c, _mean(c, over(c, "sum", value, dims), value, dims), dims, keepdim=True)
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
    return finished(c, _mean(c, over(c, "sum", value, windows), value, windows), windows, keepdim=False)


@lowers("amax", "max", "amin", "min")
def extreme(c: Call, input: Value, dim: Any = None, keepdim: bool = False) -> Any:
    name = c.op.removeprefix("a")
    if isinstance(dim, Value):
        return c.pointwise(f"{name}imum", input, dim, exact=True)
    dims = chosen(dim, len(input.dims))
    values = finished(c, over(c, name, input, dims), dims, keepdim, exact=True)
    if c.op == name and dim is not None:
        return values, partial(_first, c, name, input, dim, keepdim)
    return values


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


@lowers("var", "std", "var_mean", "std_mean")
def spread(
    c: Call, input: Value, dim: Any = None, unbiased: bool = True, keepdim: bool = False, **kwargs: Any
) -> Any:
    dims = chosen(dim, len(input.dims))
    correction = kwargs.get("correction", 1 if unbiased else 0)
    _, square = moments(c, input, dims)
    n = count(c, input, dims, square.expr.dtype)
    expr = c.e("div", square.expr, c.e("sub", n, float(correction)))
    expr = c.e("sqrt", expr) if c.op.startswith("std") else expr
    result = finished(c, Value(square.dims, expr), dims, keepdim)
    return (result, mean(c, input, dim, keepdim)) if c.op.endswith("mean") else result


def moments(c: Call, value: Value, dims: list[int]) -> tuple[Value, Value]:
    """(mean, sum of squared deviations), kept dimensions, in the compute type."""
    total = over(c, "sum", value, dims)
    average = Value(total.dims, c.e("div", total.expr, count(c, value, dims, total.expr.dtype)))
    shape, (x, m) = broadcast(c.trace, [value, average])
    centred = c.e("sub", c.wide(x), m)
    return average, over(c, "sum", Value(shape, centred), dims, _squared)


def _squared(x: Any) -> Any:
    return x * x


@lowers("any", "all")
def any_(c: Call, input: Value, dim: Any = None, keepdim: bool = False) -> Value:
    dims = chosen(dim, len(input.dims))
    zero = c.number(0, compute_type(input.dtype))
    true = c.trace.cast(c.e("ne", c.wide(c.trace.refresh(input).expr), zero), "float32")
    extreme = over(c, "max" if c.op == "any" else "min", Value(input.dims, true), dims)
    return finished(c, Value(extreme.dims, c.trace.cast(extreme.expr, "bool")), dims, keepdim)


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
    power = c.pointwise(grow, c.pointwise("sub", input, finite))
    total = finished(c, over(c, "sum", power, dims), dims, keepdim=True)
    return drop(c.pointwise("add", c.pointwise("log", total), finite), dims, keepdim)


@lowers("norm", "linalg_vector_norm")
def norm(
    c: Call, input: Value, p: Any = 2, dim: Any = None, keepdim: bool = False, dtype: Any = None, **kw: Any
) -> Value:
    if p not in (1, 2, "fro", None, float("inf")) or dtype is not None or kw:
        raise c.fail(f"of order {p}")
    dims = chosen(dim, len(input.dims))
    if p in (1, float("inf")):
        return finished(c, over(c, "sum" if p == 1 else "max", input, dims, abs), dims, keepdim)
    total = over(c, "sum", input, dims, _squared)
    return finished(c, Value(total.dims, c.e("sqrt", total.expr)), dims, keepdim)


@lowers("normalize")
def normalize(c: Call, input: Value, p: Any = 2.0, dim: int = 1, eps: Number = 1e-12) -> Value:
    length = norm(c, input, p, dim, True)
    return c.pointwise("div", input, c.pointwise("maximum", length, eps, exact=True))


@lowers("softmax", "log_softmax", "softmin")
def softmax(c: Call, input: Value, dim: Any = None, _stacklevel: int = 3, dtype: Any = None) -> Value:
    if not isinstance(dim, int):
        raise c.fail("without a dimension")
    if c.op == "softmin":
        input = c.pointwise("neg", input, exact=True)
    source = Value(input.dims, c.trace.cast(input.expr, c.out)) if dtype is not None else input
    dims = [wrap(dim, len(input.dims))]
    top = over(c, "softmax_max", source, dims)
    shape, (x, m) = broadcast(c.trace, [source, top])
    shifted = c.e("sub", c.wide(x), m)
    power = Value(shape, shrink(Term(c, shifted)).expr)
    total = over(c, "sum", power, dims)
    if c.op == "log_softmax":
        shape, (y, s) = broadcast(c.trace, [Value(shape, shifted), total])
        return Value(shape, c.finish(c.e("sub", y, c.e("log", s)), c.out))
    shape, (y, s) = broadcast(c.trace, [power, total])
    return Value(shape, c.finish(c.e("div", y, s), c.out))


@lowers("rms_norm")
def rms_norm(
    c: Call, input: Value, normalized_shape: Any, weight: Any = None, eps: Number | None = None
) -> Value:
    if eps is None:
        raise c.fail("without eps")
    dims = list(range(len(input.dims) - len(normalized_shape), len(input.dims)))
    total = over(c, "sum", input, dims, _squared)
    average = c.e("div", total.expr, count(c, input, dims, total.expr.dtype))
    scale = inverse_root(apply("add", Term(c, average), eps)).expr
    inputs = [input, Value(total.dims, scale), *([weight] if weight is not None else [])]
    shape, parts = broadcast(c.trace, inputs)
    expr = c.e("mul", c.wide(parts[0]), parts[1])
    if weight is not None:
        expr = c.e("mul", expr, c.wide(parts[2]))
    return Value(shape, c.finish(expr, c.out))


@lowers("layer_norm")
def layer_norm(c: Call, input: Value, normalized_shape: Any, *args: Any, **named: Any) -> Value:
    rank, options = len(input.dims), arguments("weight bias eps", args, named)
    return _normalised(c, input, list(range(rank - len(normalized_shape), rank)), options)


@lowers("group_norm")
def group_norm(c: Call, input: Value, num_groups: Any, *args: Any, **named: Any) -> Value:
    value, options = c.trace.refresh(input), arguments("weight bias eps", args, named)
    shape, groups = c.trace.shape(value), as_size(num_groups)
    inner = c.trace.divide(shape[1], groups)
    grouped = regroup(c.trace, value, [shape[0], groups, inner, *shape[2:]])
    for name in ("weight", "bias"):
        if options.get(name) is not None:
            vector = regroup(c.trace, options[name], [groups, inner])
            options[name] = Value([(), *vector.dims, *[()] * (len(shape) - 2)], vector.expr)
    result = _normalised(c, grouped, list(range(2, len(shape) + 1)), options)
    return regroup(c.trace, result, shape)


@lowers("instance_norm", "batch_norm")
def batch_norm(c: Call, input: Value, *args: Any, **named: Any) -> Value:
    names = "running_mean running_var weight bias training momentum eps"
    if c.op == "instance_norm":
        names = names.replace("training", "use_input_stats")
    options, rank = arguments(names, args, named), len(input.dims)
    running = [options.get(name) for name in ("running_mean", "running_var")]
    for name in ("weight", "bias"):
        if options.get(name) is not None:
            options[name] = along(c, options[name], rank, 1)
    if c.op == "instance_norm":
        if not options.get("use_input_stats", True) or running[0] is not None:
            raise c.fail("with running statistics")
        return _normalised(c, input, list(range(2, rank)), options)
    if running == [None, None]:
        return _normalised(c, input, [k for k in range(rank) if k != 1], options)
    if options.get("training") or None in running:
        raise c.fail("with statistics that it writes")
    average, variance = (along(c, options[name], rank, 1) for name in ("running_mean", "running_var"))
    return _affine(c, [input, average, variance], options, _of_channel if c.target == "cuda" else _by_channel)


def _normalised(c: Call, input: Value, dims: list[int], options: dict[str, Any]) -> Value:
    """The input normalised over `dims`, then scaled by the options' `weight` and shifted by `bias`."""
    average, square = moments(c, input, dims)
    variance = c.e("div", square.expr, count(c, input, dims, square.expr.dtype))
    by = c.number(options.get("eps", 1e-5), variance.dtype)
    of_input = c.target == "cuda" and c.op == "group_norm"  # eps, mean and scale have the input's type there
    if of_input:
        by = c.wide(c.finish(by, c.out))
    scale = inverse_root(Term(c, c.e("add", variance, by))).expr
    if of_input:
        scale = c.wide(c.finish(scale, c.out))
        average = Value(average.dims, c.wide(c.finish(average.expr, c.out)))
    form = _FORMS_ON_CUDA[c.op] if c.target == "cuda" else _centred
    return _affine(c, [input, average, Value(square.dims, scale)], options, form, scale.dtype)


def _affine(c: Call, values: list[Value], options: dict[str, Any], form: Any, compute: str = "") -> Value:
    """A form of the input, the mean, and the inverse deviation; or the variance where no type is named."""
    extra = [v for name in ("weight", "bias") if (v := options.get(name)) is not None]
    shape, parts = broadcast(c.trace, [*values, *extra])
    x, m, r, *rest = [Term(c, c.trace.cast(part, compute or compute_type(c.out))) for part in parts]
    if not compute:
        r = inverse_root(r + options.get("eps", 1e-5))
    gamma = rest[0] if options.get("weight") is not None else None
    beta = rest[-1] if options.get("bias") is not None else None
    return Value(shape, c.finish(form(x, m, r, gamma, beta).expr, c.out))


def _centred(x: Any, m: Any, r: Any, gamma: Any, beta: Any) -> Any:
    """Normalise like eager's layer_norm on CUDA: gamma * (r * (x - m)) + beta. Of equal elements nothing
    is left."""
    scaled = (x - m) * r
    if gamma is not None and beta is not None:
        return fma(scaled, gamma, beta)
    if gamma is not None:
        return scaled * gamma
    return scaled if beta is None else scaled + beta


def _by_channel(x: Any, m: Any, r: Any, gamma: Any, beta: Any) -> Any:
    """Normalise as eager's batch_norm on the CPU does: a scale and a shift of the channel."""
    alpha = r * gamma if gamma is not None else r
    shift = m * alpha
    return fma(x, alpha, beta - shift if beta is not None else -shift)


def _of_channel(x: Any, m: Any, r: Any, gamma: Any, beta: Any) -> Any:
    """Normalise as eager's batch_norm on CUDA does: gamma * (x - m) * r + beta."""
    centred = x - m if gamma is None else gamma * (x - m)
    return centred * r if beta is None else fma(centred, r, beta)


def _of_group(x: Any, m: Any, r: Any, gamma: Any, beta: Any) -> Any:
    """Normalise as eager's group_norm on CUDA does: one multiply-add with a channel's scale and shift."""
    if gamma is None and beta is None:
        return _centred(x, m, r, gamma, beta)
    scale = r if gamma is None else r * gamma
    return fma(scale, x, -scale * m if beta is None else fma(-scale, m, beta))


_FORMS_ON_CUDA = {"layer_norm": _centred, "group_norm": _of_group, "instance_norm": _of_channel}
_FORMS_ON_CUDA["batch_norm"] = _of_channel
