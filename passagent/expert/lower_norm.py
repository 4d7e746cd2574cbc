"""Softmax and normalisations."""

from __future__ import annotations

from typing import Any

from passagent.expert.expressions import Expr, Value
from passagent.expert.lower_math import along, inverse_root
from passagent.expert.lower_reduce import count, moments, over
from passagent.expert.lowering import Call, Number, compute_type, lowers, wrap
from passagent.expert.shapes import broadcast, regroup


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
    power = Value(shape, c.exp_below(shifted))
    total = over(c, "sum", power, dims)
    if c.op == "log_softmax":
        shape, (y, s) = broadcast(c.trace, [Value(shape, shifted), total])
        return Value(shape, c.finish(c.e("sub", y, c.e("log", s)), c.out))
    shape, (y, s) = broadcast(c.trace, [power, total])
    return Value(shape, c.finish(c.e("div", y, s), c.out))


@lowers("layer_norm")
def layer_norm(
    c: Call, input: Value, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: Number = 1e-5
) -> Value:
    rank, inner = len(input.dims), len(normalized_shape)
    dims = list(range(rank - inner, rank))
    return _normalised(c, input, dims, eps, (weight, bias), lambda v: v)


@lowers("rms_norm")
def rms_norm(
    c: Call, input: Value, normalized_shape: Any, weight: Any = None, eps: Number | None = None
) -> Value:
    if eps is None:
        raise c.fail("without eps")
    dims = list(range(len(input.dims) - len(normalized_shape), len(input.dims)))
    total = over(c, "sum", input, dims, lambda x: c.e("mul", x, x))
    average = c.e("div", total.expr, count(c, input, dims, total.expr.dtype))
    scale = inverse_root(c, c.e("add", average, c.number(eps, average.dtype)))
    inputs = [input, Value(total.dims, scale), *([weight] if weight is not None else [])]
    shape, parts = broadcast(c.trace, inputs)
    expr = c.e("mul", c.wide(parts[0]), parts[1])
    if weight is not None:
        expr = c.e("mul", expr, c.wide(parts[2]))
    return Value(shape, c.finish(expr, c.out))


@lowers("group_norm")
def group_norm(
    c: Call, input: Value, num_groups: Any, weight: Any = None, bias: Any = None, eps: Number = 1e-5
) -> Value:
    from passagent.expert.shapes import as_size

    value = c.trace.refresh(input)
    shape, groups = c.trace.shape(value), as_size(num_groups)
    inner = c.trace.divide(shape[1], groups)
    grouped = regroup(c.trace, value, [shape[0], groups, inner, *shape[2:]])
    vectors = [regroup(c.trace, v, [groups, inner]) if v is not None else None for v in (weight, bias)]
    spread = [
        Value([(), *v.dims, *[()] * (len(shape) - 2)], v.expr) if v is not None else None for v in vectors
    ]
    dims = list(range(2, len(shape) + 1))
    result = _normalised(c, grouped, dims, eps, (spread[0], spread[1]), lambda v: v)
    return regroup(c.trace, result, shape)


@lowers("instance_norm")
def instance_norm(
    c: Call,
    input: Value,
    running_mean: Any = None,
    running_var: Any = None,
    weight: Any = None,
    bias: Any = None,
    use_input_stats: bool = True,
    momentum: Any = 0.1,
    eps: Number = 1e-5,
) -> Value:
    if not use_input_stats or running_mean is not None:
        raise c.fail("with running statistics")
    rank = len(input.dims)
    return _normalised(c, input, list(range(2, rank)), eps, (weight, bias), lambda v: along(c, v, rank, 1))


def _normalised(
    c: Call, input: Value, dims: list[int], eps: Number, affine: tuple[Any, Any], spread: Any
) -> Value:
    weight, bias = affine
    average, square = moments(c, input, dims)
    variance = c.e("div", square.expr, count(c, input, dims, square.expr.dtype))
    by = c.number(eps, variance.dtype)
    of_input = c.target == "cuda" and c.op == "group_norm"  # eps, mean and scale have the input's type there
    if of_input:
        by = c.wide(c.finish(by, c.out))
    scale = inverse_root(c, c.e("add", variance, by))
    if of_input:
        scale = c.wide(c.finish(scale, c.out))
        average = Value(average.dims, c.wide(c.finish(average.expr, c.out)))
    extra = [spread(v) for v in (weight, bias) if v is not None]
    shape, parts = broadcast(c.trace, [input, average, Value(square.dims, scale), *extra])
    x, m, r, *rest = [c.trace.cast(p, scale.dtype) for p in parts]
    gamma = rest[0] if weight is not None else None
    beta = rest[-1] if bias is not None else None
    form = _FORMS_ON_CUDA[c.op] if c.target == "cuda" else _centred
    return Value(shape, c.finish(form(c, x, m, r, gamma, beta), c.out))


def _scaled(c: Call, x: Expr, gamma: Expr | None, beta: Expr | None) -> Expr:
    if gamma is not None and beta is not None:
        return c.e("fma", x, gamma, beta)
    if gamma is not None:
        return c.e("mul", x, gamma)
    return x if beta is None else c.e("add", x, beta)


def _centred(c: Call, x: Expr, m: Expr, r: Expr, gamma: Expr | None, beta: Expr | None) -> Expr:
    """Normalise like eager's layer_norm on CUDA: gamma * (r * (x - m)) + beta. Of equal elements nothing
    is left."""
    return _scaled(c, c.e("mul", c.e("sub", x, m), r), gamma, beta)


def _by_channel(c: Call, x: Expr, m: Expr, r: Expr, gamma: Expr | None, beta: Expr | None) -> Expr:
    """Normalise as eager's batch_norm on the CPU does: a scale and a shift of the channel."""
    alpha = c.e("mul", r, gamma) if gamma is not None else r
    shift = c.e("mul", m, alpha)
    return c.e("fma", x, alpha, c.e("sub", beta, shift) if beta is not None else c.e("neg", shift))


def _of_channel(c: Call, x: Expr, m: Expr, r: Expr, gamma: Expr | None, beta: Expr | None) -> Expr:
    """Normalise as eager's batch_norm on CUDA does: gamma * (x - m) * r + beta."""
    centred = c.e("sub", x, m)
    if gamma is not None:
        centred = c.e("mul", gamma, centred)
    return c.e("mul", centred, r) if beta is None else c.e("fma", centred, r, beta)


def _of_group(c: Call, x: Expr, m: Expr, r: Expr, gamma: Expr | None, beta: Expr | None) -> Expr:
    """Normalise as eager's group_norm on CUDA does: one multiply-add with a channel's scale and shift."""
    if gamma is None and beta is None:
        return _centred(c, x, m, r, gamma, beta)
    scale = r if gamma is None else c.e("mul", r, gamma)
    shift = c.e("mul", c.e("neg", scale), m) if beta is None else c.e("fma", c.e("neg", scale), m, beta)
    return c.e("fma", scale, x, shift)


_FORMS_ON_CUDA = {"layer_norm": _centred, "group_norm": _of_group, "instance_norm": _of_channel}
_FORMS_ON_CUDA["batch_norm"] = _of_channel


@lowers("batch_norm")
def batch_norm(
    c: Call,
    input: Value,
    running_mean: Any,
    running_var: Any,
    weight: Any = None,
    bias: Any = None,
    training: bool = False,
    momentum: Any = 0.1,
    eps: Number = 1e-5,
) -> Value:
    rank = len(input.dims)
    if running_mean is None and running_var is None:
        others = [k for k in range(rank) if k != 1]
        return _normalised(c, input, others, eps, (weight, bias), lambda v: along(c, v, rank, 1))
    if training or running_mean is None or running_var is None:
        raise c.fail("with statistics that it writes")
    mean_, variance = along(c, running_mean, rank, 1), along(c, running_var, rank, 1)
    extra = [along(c, v, rank, 1) for v in (weight, bias) if v is not None]
    shape, parts = broadcast(c.trace, [input, mean_, variance, *extra])
    compute = compute_type(c.out)
    x, m, v, *rest = [c.trace.cast(p, compute) for p in parts]
    scale = inverse_root(c, c.e("add", v, c.number(eps, compute)))
    gamma, beta = rest[0] if weight is not None else None, rest[-1] if bias is not None else None
    form = _of_channel if c.target == "cuda" else _by_channel
    return Value(shape, c.finish(form(c, x, m, scale, gamma, beta), c.out))
