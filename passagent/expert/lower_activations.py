"""Activations: each as eager computes it, rounding where eager does."""

from __future__ import annotations

import math

from passagent.expert.expressions import Expr, Value
from passagent.expert.lower_math import along, clamp, clip, reciprocal_of
from passagent.expert.lowering import FLOATING, Call, Number, lowers


@lowers("relu")
def relu(c: Call, input: Value, inplace: bool = False) -> Value:
    return c.pointwise("relu", input, exact=True)


@lowers("sigmoid")
def sigmoid(c: Call, input: Value) -> Value:
    return c.pointwise(lambda x: logistic(c, x), input)


def logistic(c: Call, x: Expr) -> Expr:
    return c.e("div", 1.0, c.e("add", c.exp_added(c.e("neg", x)), 1.0))


@lowers("silu")
def silu(c: Call, input: Value, inplace: bool = False) -> Value:
    return c.pointwise(lambda x: c.e("div", x, c.e("add", c.exp_added(c.e("neg", x)), 1.0)), input)


@lowers("gelu")
def gelu(c: Call, input: Value, approximate: str = "none") -> Value:
    def exact(x: Expr) -> Expr:
        scaled = c.e("mul", x, math.sqrt(0.5))
        inner = erf_of_eager(c, scaled) if c.target == "cpu" and x.dtype == "float32" else c.e("erf", scaled)
        return c.e("mul", c.e("mul", x, 0.5), c.e("add", inner, 1.0))

    def by_tanh(x: Expr) -> Expr:
        cube = c.e("mul", c.e("mul", x, x), x)
        if c.target == "cuda":
            bent = c.e("fma", cube, 0.044715, x)
        else:
            bent = c.e("add", x, c.e("mul", cube, 0.044715))
        inner = c.e("mul", bent, math.sqrt(2 / math.pi))
        if c.target == "cuda":  # (1 + tanh(y)) / 2 is 1 / (1 + exp(-2 y))
            return c.e("div", x, c.e("add", c.exp_added(c.e("mul", inner, -2.0)), 1.0))
        return c.e("mul", c.e("mul", x, 0.5), c.e("add", c.e("tanh", inner), 1.0))

    return c.pointwise(by_tanh if approximate == "tanh" else exact, input)


def erf_of_eager(c: Call, x: Expr) -> Expr:
    """erf as eager's vectorised kernels have it on the CPU (Abramowitz and Stegun 7.1.26, error 1.5e-7)."""
    size = c.e("abs", x)
    t = c.e("div", 1.0, c.e("fma", size, 0.3275911, 1.0))
    r = c.e("fma", t, 1.061405429, -1.453152027)
    for p in (1.421413741, -0.284496736, 0.254829592):
        r = c.e("fma", r, t, p)
    tail = c.e("mul", c.e("mul", r, t), c.exp_below(c.e("neg", c.e("mul", x, x))))
    return c.e("copysign", c.e("sub", 1.0, tail), x)


@lowers("hardtanh", "relu6")
def hardtanh(
    c: Call, input: Value, min_val: Number = -1.0, max_val: Number = 1.0, inplace: bool = False
) -> Value:
    low, high = (0.0, 6.0) if c.op == "relu6" else (min_val, max_val)
    return clamp(c, input, low, high)


@lowers("hardsigmoid")
def hardsigmoid(c: Call, input: Value, inplace: bool = False) -> Value:
    return c.pointwise(lambda x: sixth(c, clip(c, c.e("add", x, 3.0), 0.0, 6.0)), input)


@lowers("hardswish")
def hardswish(c: Call, input: Value, inplace: bool = False) -> Value:
    return c.pointwise(lambda x: sixth(c, c.e("mul", x, clip(c, c.e("add", x, 3.0), 0.0, 6.0))), input)


def sixth(c: Call, x: Expr) -> Expr:
    return c.e("mul", x, reciprocal_of(x.dtype, 6.0)) if c.target == "cuda" else c.e("div", x, 6.0)


@lowers("leaky_relu")
def leaky_relu(c: Call, input: Value, negative_slope: Number = 0.01, inplace: bool = False) -> Value:
    return c.pointwise(
        lambda x, s: c.e("where", c.e("gt", x, 0.0), x, c.e("mul", x, s)), input, negative_slope
    )


@lowers("elu")
def elu(c: Call, input: Value, alpha: Number = 1.0, inplace: bool = False) -> Value:
    return c.pointwise(lambda x, a: _signed(c, x, x, c.e("mul", a, c.e("expm1", x))), input, alpha)


def _signed(c: Call, x: Expr, positive: Expr, negative: Expr) -> Expr:
    """A choice by the sign of x; 0 is positive to eager on the CPU, negative on CUDA."""
    if c.target == "cuda":
        return c.e("where", c.e("gt", x, 0.0), positive, negative)
    return c.e("where", c.e("lt", x, 0.0), negative, positive)


@lowers("softplus")
def softplus(c: Call, input: Value, beta: Number = 1, threshold: Number = 20) -> Value:
    def body(x: Expr, b: Expr, t: Expr) -> Expr:
        scaled = c.e("mul", x, b)
        power = c.exp_added(scaled) if c.target == "cuda" else c.e("exp", scaled)
        return c.e("where", c.e("gt", scaled, t), x, c.e("div", c.e("log1p", power), b))

    return c.pointwise(body, input, beta, threshold)


@lowers("prelu")
def prelu(c: Call, input: Value, weight: Value) -> Value:
    weight = along(c, weight, len(input.dims), 1)
    return c.pointwise(lambda x, w: c.e("where", c.e("gt", x, 0.0), x, c.e("mul", x, w)), input, weight)


@lowers("selu", "celu")
def selu(c: Call, input: Value, alpha: Number = 1.0, inplace: bool = False) -> Value:
    def body(x: Expr, a: Expr) -> Expr:
        if c.op == "celu":
            scaled = c.e("mul", x, c.e("div", 1.0, a)) if c.target == "cuda" else c.e("div", x, a)
            negative = c.e("mul", a, c.e("expm1", scaled))
            return _signed(c, x, x, negative)
        scale = 1.0507009873554804934193349852946
        negative = c.e("mul", c.e("expm1", x), scale * 1.6732632423543772848170429916717)
        return _signed(c, x, c.e("mul", x, scale), negative)

    return c.pointwise(body, input, alpha)


@lowers("mish")
def mish(c: Call, input: Value, inplace: bool = False) -> Value:
    def of_powers(x: Expr) -> Expr:
        """tanh(log(1 + e)) is (e^2 + 2e) / (e^2 + 2e + 2); from x = 20 on it is 1."""
        power = c.exp_added(c.e("minimum", x, 20.0))
        above = c.e("mul", power, c.e("add", power, 2.0))
        return c.e("mul", x, c.e("div", above, c.e("add", above, 2.0)))

    if c.target == "cuda":
        return c.pointwise(of_powers, input)
    return c.pointwise(lambda x: c.e("mul", x, c.e("tanh", c.e("log1p", c.e("exp", x)))), input)


@lowers("softsign")
def softsign(c: Call, input: Value) -> Value:
    if input.dtype in FLOATING:
        below = c.pointwise(lambda x: c.e("add", c.e("abs", x), 1.0), input)
    else:  # integers stay what they are until they are divided: the least one is its own size

        def size_and_one(x: Expr) -> Expr:
            size = c.finish(c.e("maximum", x, c.e("neg", x)), input.dtype)
            return c.e("add", c.wide(size), c.number(1, "int64"))

        above = "int64" if input.dtype == "bool" else input.dtype  # True + 1 is 2
        below = c.pointwise(size_and_one, input, common=input.dtype, out=above)
    return c.pointwise("div", input, below)


@lowers("tanhshrink")
def tanhshrink(c: Call, input: Value) -> Value:
    return c.pointwise("sub", input, c.pointwise("tanh", input))


@lowers("softshrink")
def softshrink(c: Call, input: Value, lambd: Number = 0.5) -> Value:
    def body(x: Expr, by: Expr) -> Expr:
        inside = c.e("add", c.e("mul", x, 0.0), 0.0)  # NaN, or a zero without a sign
        low = c.e("where", c.e("lt", x, c.e("neg", by)), c.e("add", x, by), inside)
        return c.e("where", c.e("gt", x, by), c.e("sub", x, by), low)

    return c.pointwise(body, input, lambd, rounds=c.target == "cuda")


@lowers("hardshrink")
def hardshrink(c: Call, input: Value, lambd: Number = 0.5) -> Value:
    def body(x: Expr, by: Expr) -> Expr:
        inside = c.e("and", c.e("ge", x, c.e("neg", by)), c.e("le", x, by))
        return c.e("where", inside, 0.0, x)

    return c.pointwise(body, input, lambd, exact=True, rounds=True)


@lowers("threshold")
def threshold(c: Call, input: Value, threshold: Number, value: Number, inplace: bool = False) -> Value:
    def body(x: Expr, t: Expr, v: Expr) -> Expr:
        return c.e("where", c.e("le", x, t), v, x)

    return c.pointwise(body, input, threshold, value, rounds=c.target == "cuda")


@lowers("logsigmoid", "log_sigmoid")
def logsigmoid(c: Call, input: Value) -> Value:
    def body(x: Expr) -> Expr:
        tail = c.e("log1p", c.exp_below(c.e("neg", c.e("abs", x))))
        return c.e("sub", c.e("minimum", x, 0.0), tail)

    return c.pointwise(body, input)


@lowers("glu")
def glu(c: Call, input: Value, dim: int = -1) -> Value:
    from passagent.expert.lower_views import chunk

    a, b = chunk(c, input, 2, dim)
    return c.pointwise(lambda x, y: c.e("mul", x, logistic(c, y)), a, b)


@lowers("rrelu")
def rrelu(
    c: Call,
    input: Value,
    lower: float = 1.0 / 8,
    upper: float = 1.0 / 3,
    training: bool = False,
    inplace: bool = False,
) -> Value:
    if training:
        raise c.fail("draws random numbers")
    return leaky_relu(c, input, (lower + upper) / 2)
