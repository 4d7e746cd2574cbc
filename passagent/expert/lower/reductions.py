"""Reductions over any dimensions, softmax and normalisations."""

from __future__ import annotations

from functools import partial
from typing import Any

from passagent.expert.lower.call import Call, arguments, broadcast, lowers, position, regroup, wrap
from passagent.expert.lower.expressions import Axis, Expr, Number, Value, apply, compute_type
from passagent.expert.lower.formulas import fma, grow, inverse_root, shrink, square, where
from passagent.expert.lower.pointwise import along
from passagent.expert.lower.symbolic_sizes import Size, as_size, times

NARROW = {"bool", "uint8", "int8", "int16", "int32"}
"""Integers that leave room for a position beside them in 64 bits."""
LAST = (1 << 31) - 1


def chosen(dim: Any, rank: int) -> list[int]:
    """Dimensions named by `dim`; None and () are all."""
    if dim is None or (isinstance(dim, tuple | list) and not dim):
        return list(range(rank))
    return sorted(wrap(d, rank) for d in (dim if isinstance(dim, tuple | list) else [dim]))


def over(name: str, value: Value, dims: list[int], body: Any = None) -> Value:
    """Reduce (keeping dimensions of size one) in the compute type; the result is not rounded."""
    value = value.refresh()
    axes: tuple[Axis, ...] = tuple(a for d in dims for a in value.dims[d])
    expr = value.expr.wide()
    if expr.dtype == "bool":
        expr = expr.cast("int64")
    expr = body(expr) if body else expr
    if axes:
        expr = expr.trace.make("reduce", (name, axes), (expr,), expr.dtype)
    return Value([() if k in dims else d for k, d in enumerate(value.dims)], expr)


def count(value: Value, dims: list[int], dtype: str) -> Expr:
    """How many elements lie along the dimensions."""
    shape = value.refresh().shape
    return value.trace.number(times(shape[d] for d in dims), dtype)


def drop(value: Value, dims: list[int], keepdim: bool) -> Value:
    return value if keepdim else Value([d for k, d in enumerate(value.dims) if k not in dims], value.expr)


def finished(c: Call, value: Value, dims: list[int], keepdim: bool, exact: bool = False) -> Value:
    """A reduction's result as eager stores it."""
    return drop(Value(value.dims, value.expr.stored(c.out, exact)), dims, keepdim)


@lowers("sum")
def sum_(c: Call, input: Value, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Value:
    dims, compute = chosen(dim, len(input.dims)), compute_type(c.out)
    # Eager sums in a tree; terms that cancel show the difference unless we add them more exactly.
    doubled = (lambda x: x.cast("float64")) if compute == "float32" else None
    return finished(c, over("sum", input.cast(compute), dims, doubled).cast(compute), dims, keepdim)


@lowers("mean")
def mean(c: Call, input: Value, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Value:
    return _mean(c, input.cast(compute_type(c.out)), chosen(dim, len(input.dims)), keepdim)


def _mean(c: Call, input: Value, dims: list[int], keepdim: bool) -> Value:
    """A sum over the number of its terms; on CUDA eager multiplies by the reciprocal."""
    total = over("sum", input, dims)
    terms = count(input, dims, total.dtype)
    expr = total.expr * (1.0 / terms) if c.target == "cuda" else total.expr / terms
    return finished(c, Value(total.dims, expr), dims, keepdim)


@lowers("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d")
def adaptive_average(c: Call, input: Value, output_size: Any) -> Value:
    """To one element, or in windows of one size."""
    rank = int(c.op[-2])
    sizes = list(output_size) if isinstance(output_size, tuple | list) else [output_size] * rank
    shape, first = input.shape, len(input.dims) - rank
    if all(want == 1 for want in sizes):
        return _mean(c, input, list(range(first, first + rank)), keepdim=True)
    if c.target == "cpu":
        raise c.fail("to more than one element is left to the library")
    split, windows = list[Size](shape[:first]), list[int]()
    for have, want in zip(shape[first:], sizes, strict=True):
        target_size = have if want is None else as_size(want)
        if have.hint % target_size.hint:
            raise c.fail("to windows of several sizes is left to the library")
        split += [target_size, have // target_size]
        windows.append(len(split) - 1)
    return _mean(c, regroup(input, split), windows, keepdim=False)


@lowers("amax", "max", "amin", "min")
def extreme(c: Call, input: Value, dim: Any = None, keepdim: bool = False) -> Any:
    name = c.op.removeprefix("a")
    if isinstance(dim, Value):
        return c.pointwise(f"{name}imum", input, dim, exact=True)
    dims = chosen(dim, len(input.dims))
    values = finished(c, over(name, input, dims), dims, keepdim, exact=True)
    if c.op == name and dim is not None:
        return values, partial(first, c, input, dim, keepdim)
    return values


@lowers("argmax", "argmin")
def first(c: Call, input: Value, dim: Any = None, keepdim: bool = False) -> Value:
    """Where the first extreme stands: one maximum, of integers that hold an element's rank and its position.

    Of equal ranks that with the lower position is larger.
    """
    t, dims, name = c.trace, chosen(dim, len(input.dims)), c.op.removeprefix("arg")
    value = input.refresh()
    axes = tuple(a for d in dims for a in value.dims[d])
    if not value.expr.axes:
        raise c.fail("the position of an extreme of a single number is not lowered")
    length = str(t.size_of(axes))
    if not length.isdigit():
        t.guard(f"{length} > 0")
        t.guard(f"{length} <= {LAST}")
    behind = apply("sub", LAST, position(t, axes))
    key = apply("add", apply("mul", _rank(c, name, value.expr), 1 << 32), behind)
    extreme = over("max", Value(value.dims, key), dims)
    low = extreme.expr.cast("int32").cast("int64")
    return drop(Value(extreme.dims, apply("sub", LAST, low)), dims, keepdim)


def _rank(c: Call, name: str, element: Expr) -> Expr:
    """An integer of 32 bits that is the larger, the earlier eager takes an element for the extreme."""
    x = element.wide()
    if element.dtype in NARROW:
        x = x.cast("int64")
        return x if name == "max" else apply("sub", -1, x)
    if x.dtype != "float32":
        raise c.fail(f"the position of an extreme of {element.dtype} is not lowered")
    bits = c.trace.op("bits", [x if name == "max" else -x], "int32")
    rank = where(bits < 0, apply("sub", -LAST - 1, bits), bits)
    return where(apply("ne", x, x), LAST, rank).cast("int64")  # NaN comes before all others


@lowers("var", "std", "var_mean", "std_mean")
def spread(
    c: Call, input: Value, dim: Any = None, unbiased: bool = True, keepdim: bool = False, **kwargs: Any
) -> Any:
    dims = chosen(dim, len(input.dims))
    correction = kwargs.get("correction", 1 if unbiased else 0)
    _, squares = moments(input, dims)
    expr = squares.expr / (count(input, dims, squares.dtype) - float(correction))
    expr = apply("sqrt", expr) if c.op.startswith("std") else expr
    result = finished(c, Value(squares.dims, expr), dims, keepdim)
    return (result, mean(c, input, dim, keepdim)) if c.op.endswith("mean") else result


def moments(value: Value, dims: list[int]) -> tuple[Value, Value]:
    """(mean, sum of squared deviations), kept dimensions, in the compute type."""
    doubled = value.trace.target == "cuda" and value.expr.wide().dtype == "float32"
    total = over("sum", value, dims, (lambda x: x.cast("float64")) if doubled else None)
    terms = count(value, dims, total.dtype)
    mean = total.expr * (1.0 / terms) if doubled else total.expr / terms
    if doubled:  # of equal elements it is their value, however large; where the sum overflows it is infinite
        summed = total.expr.cast("float32")
        mean = where(abs(summed) < float("inf"), mean.cast("float32"), summed)
    average = Value(total.dims, mean)
    shape, (x, m) = broadcast([value, average])
    return average, over("sum", Value(shape, x.wide() - m), dims, square)


@lowers("any", "all")
def any_(c: Call, input: Value, dim: Any = None, keepdim: bool = False) -> Value:
    dims = chosen(dim, len(input.dims))
    true = apply("ne", input.expr.wide(), 0).cast("float32")
    extreme = over("max" if c.op == "any" else "min", Value(input.dims, true), dims)
    return finished(c, extreme.cast("bool"), dims, keepdim)


@lowers("logsumexp")
def logsumexp(c: Call, input: Value, dim: Any, keepdim: bool = False) -> Value:
    """In eager's own steps, each of which rounds; integers are made floats first."""
    dims = chosen(dim, len(input.dims))
    input = c.pointwise(lambda x: x, input)
    top = over("max", input, dims)
    finite = Value(top.dims, where(abs(top.expr) < float("inf"), top.expr, 0.0).stored(c.out, exact=True))
    power = c.pointwise(grow, c.pointwise("sub", input, finite))
    total = finished(c, over("sum", power, dims), dims, keepdim=True)
    return drop(c.pointwise("add", c.pointwise("log", total), finite), dims, keepdim)


@lowers("norm", "linalg_vector_norm")
def norm(
    c: Call, input: Value, p: Any = 2, dim: Any = None, keepdim: bool = False, dtype: Any = None, **kw: Any
) -> Value:
    if p not in (1, 2, "fro", None, float("inf")) or dtype is not None or kw:
        raise c.fail(f"of order {p}")
    dims = chosen(dim, len(input.dims))
    if p in (1, float("inf")):
        return finished(c, over("sum" if p == 1 else "max", input, dims, abs), dims, keepdim)
    total = over("sum", input, dims, square)
    return finished(c, Value(total.dims, apply("sqrt", total.expr)), dims, keepdim)


@lowers("normalize")
def normalize(c: Call, input: Value, p: Any = 2.0, dim: int = 1, eps: Number = 1e-12) -> Value:
    length = norm(c, input, p, dim, True)
    return c.pointwise("div", input, c.pointwise("maximum", length, eps, exact=True))


@lowers("softmax", "log_softmax", "softmin")
def softmax(c: Call, input: Value, dim: Any, _stacklevel: int = 3, dtype: Any = None) -> Value:
    if c.op == "softmin":
        input = c.pointwise("neg", input, exact=True)
    source = input.cast(c.out) if dtype is not None else input
    dims = [wrap(dim, len(input.dims))]
    shape, (x, m) = broadcast([source, over("softmax_max", source, dims)])
    shifted = x.wide() - m
    power = Value(shape, shrink(shifted))
    total = over("sum", power, dims)
    is_log = c.op == "log_softmax"
    shape, (y, s) = broadcast([Value(shape, shifted) if is_log else power, total])
    return Value(shape, (y - apply("log", s) if is_log else y / s).cast(c.out))


@lowers("rms_norm")
def rms_norm(
    c: Call, input: Value, normalized_shape: Any, weight: Any = None, eps: Number | None = None
) -> Value:
    if eps is None:
        raise c.fail("without eps")
    dims = list(range(len(input.dims) - len(normalized_shape), len(input.dims)))
    total = over("sum", input, dims, square)
    average = total.expr / count(input, dims, total.dtype)
    scale = inverse_root(apply("add", average, eps))
    inputs = [input, Value(total.dims, scale), *([weight] if weight is not None else [])]
    shape, (x, s, *gamma) = broadcast(inputs)
    expr = x.wide() * s
    return Value(shape, (expr * gamma[0].wide() if gamma else expr).cast(c.out))


@lowers("layer_norm")
def layer_norm(c: Call, input: Value, normalized_shape: Any, *args: Any, **named: Any) -> Value:
    rank, options = len(input.dims), arguments("weight bias eps", args, named)
    return _normalised(c, input, list(range(rank - len(normalized_shape), rank)), options)


@lowers("group_norm")
def group_norm(c: Call, input: Value, num_groups: Any, *args: Any, **named: Any) -> Value:
    options, shape, groups = arguments("weight bias eps", args, named), input.shape, as_size(num_groups)
    inner = shape[1] // groups
    grouped = regroup(input, [shape[0], groups, inner, *shape[2:]])
    for name in ("weight", "bias"):
        if options.get(name) is not None:
            vector = regroup(options[name], [groups, inner])
            options[name] = Value([(), *vector.dims, *[()] * (len(shape) - 2)], vector.expr)
    return regroup(_normalised(c, grouped, list(range(2, len(shape) + 1)), options), shape)


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
    average, squares = moments(input, dims)
    variance = squares.expr / count(input, dims, squares.dtype)
    by = c.trace.number(options.get("eps", 1e-5), variance.dtype)
    of_input = c.target == "cuda" and c.op == "group_norm"  # eps, mean and scale have the input's type there
    scale = inverse_root(variance + (by.stored(c.out).wide() if of_input else by))
    if of_input:
        scale = scale.stored(c.out).wide()
        average = Value(average.dims, average.expr.stored(c.out).wide())
    form = _FORMS_ON_CUDA[c.op] if c.target == "cuda" else _centred
    return _affine(c, [input, average, Value(squares.dims, scale)], options, form, scale.dtype)


def _affine(c: Call, values: list[Value], options: dict[str, Any], form: Any, compute: str = "") -> Value:
    """A form of the input, the mean, and the inverse deviation; or the variance where no type is named."""
    extra = [v for name in ("weight", "bias") if (v := options.get(name)) is not None]
    shape, parts = broadcast([*values, *extra])
    x, m, r, *rest = [part.cast(compute or compute_type(c.out)) for part in parts]
    if not compute:
        r = inverse_root(r + options.get("eps", 1e-5))
    gamma = rest[0] if options.get("weight") is not None else None
    beta = rest[-1] if options.get("bias") is not None else None
    return Value(shape, form(x, m, r, gamma, beta).cast(c.out))


def _centred(x: Any, m: Any, r: Any, gamma: Any, beta: Any) -> Any:
    """Normalise like eager's layer_norm on CUDA: gamma * (r * (x - m)) + beta; nothing of equal elements."""
    return _scaled((x - m) * r, gamma, beta)


def _scaled(x: Any, by: Any, beta: Any = None) -> Any:
    """x * by + beta, as far as these are given."""
    if by is None:
        return x if beta is None else x + beta
    return x * by if beta is None else fma(x, by, beta)


def _by_channel(x: Any, m: Any, r: Any, gamma: Any, beta: Any) -> Any:
    """Normalise as eager's batch_norm on the CPU does: a scale and a shift of the channel."""
    alpha = _scaled(r, gamma)
    shift = m * alpha
    return fma(x, alpha, beta - shift if beta is not None else -shift)


def _of_channel(x: Any, m: Any, r: Any, gamma: Any, beta: Any) -> Any:
    """Normalise as eager's batch_norm on CUDA does: gamma * (x - m) * r + beta."""
    return _scaled(x - m if gamma is None else gamma * (x - m), r, beta)


def _of_group(x: Any, m: Any, r: Any, gamma: Any, beta: Any) -> Any:
    """Normalise as eager's group_norm on CUDA does: one multiply-add with a channel's scale and shift."""
    if gamma is None and beta is None:
        return _centred(x, m, r, gamma, beta)
    scale = _scaled(r, gamma)
    return fma(scale, x, -scale * m if beta is None else fma(-scale, m, beta))


_FORMS_ON_CUDA = {"layer_norm": _centred, "group_norm": _of_group}
_FORMS_ON_CUDA |= dict.fromkeys(("instance_norm", "batch_norm"), _of_channel)
