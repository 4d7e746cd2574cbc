"""Pointwise operators."""

from __future__ import annotations

import math
from typing import Any

import torch

from passagent.models.expert.ir import Expr, Value
from passagent.models.expert.lowering import (
    FLOATING,
    OPS,
    Call,
    Number,
    Scalar,
    compute_type,
    dtype_name,
    lowers,
)

Operand = Value | Number


def _binary(name: str, *aliases: str, exact: bool = False) -> None:
    def lower(
        c: Call, a: Operand, b: Operand, *, alpha: Number = 1, rounding_mode: str | None = None
    ) -> Value:
        if alpha != 1 or rounding_mode is not None:
            raise c.fail("alpha and rounding_mode are not lowered")
        return c.pointwise(name, a, b, exact=exact)

    for alias in (name, *aliases):
        OPS[alias] = lower


_binary("add", "iadd", "add_", "__add__", "__radd__")
_binary("sub", "isub", "sub_", "__sub__")
_binary("mul", "imul", "mul_", "__mul__", "multiply", "__rmul__")
_binary("div", "truediv", "itruediv", "div_", "__truediv__")
_binary("maximum", exact=True)
_binary("minimum", exact=True)


def _comparison(name: str, *aliases: str) -> None:
    def lower(c: Call, a: Operand, b: Operand) -> Value:
        return c.pointwise(name, a, b, compute=c.promoted(a, b), out="bool")

    for alias in (name, f"__{name}__", *aliases):
        OPS[alias] = lower


for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    _comparison(_name)


@lowers("rsub")
def rsub(c: Call, a: Operand, b: Operand) -> Value:
    return c.pointwise("sub", b, a)


@lowers("and_", "__and__", "logical_and")
def and_(c: Call, a: Operand, b: Operand) -> Value:
    if c.out != "bool":
        raise c.fail("on integers is not lowered")
    return c.pointwise("and", a, b, compute="bool")


@lowers("or_", "__or__", "logical_or")
def or_(c: Call, a: Operand, b: Operand) -> Value:
    if c.out != "bool":
        raise c.fail("on integers is not lowered")
    return c.pointwise("or", a, b, compute="bool")


@lowers("invert", "logical_not", "__invert__", "bitwise_not")
def invert(c: Call, a: Value) -> Value:
    if c.out != "bool":
        raise c.fail("on integers is not lowered")
    return c.pointwise("not", a, compute="bool")


def _unary(name: str, *aliases: str, exact: bool = False) -> None:
    def lower(c: Call, input: Value, inplace: bool = False) -> Value:
        return c.pointwise(name, input, exact=exact)

    for alias in (name, *aliases):
        OPS[alias] = lower


for _op in ("exp", "log", "sqrt", "sin", "cos", "tanh", "erf", "log1p", "expm1", "floor", "ceil"):
    _unary(_op)
_unary("neg", "negative", "__neg__", exact=True)
_unary("abs", "__abs__", exact=True)


@lowers("rsqrt")
def rsqrt(c: Call, input: Value) -> Value:
    return c.pointwise(lambda x: c.e("div", 1.0, c.e("sqrt", x)), input)


@lowers("reciprocal")
def reciprocal(c: Call, input: Value) -> Value:
    return c.pointwise(lambda x: c.e("div", 1.0, x), input)


@lowers("square")
def square(c: Call, input: Value) -> Value:
    return c.pointwise(lambda x: c.e("mul", x, x), input)


@lowers("pow", "pow_", "__pow__")
def pow_(c: Call, input: Operand, exponent: Operand) -> Value:
    simple = {
        2: lambda x: c.e("mul", x, x),
        3: lambda x: c.e("mul", c.e("mul", x, x), x),
        0.5: lambda x: c.e("sqrt", x),
    }
    simple |= {
        1: lambda x: x,
        -0.5: lambda x: c.e("div", 1.0, c.e("sqrt", x)),
        -1: lambda x: c.e("div", 1.0, x),
    }
    if (
        isinstance(exponent, int | float)
        and exponent in simple
        and isinstance(input, Value)
        and c.out in FLOATING
    ):
        return c.pointwise(simple[exponent], input)
    if isinstance(exponent, int) and exponent in (2, 3) and isinstance(input, Value):
        return c.pointwise(simple[exponent], input)
    if c.out not in FLOATING:
        raise c.fail("on integers is not lowered")
    return c.pointwise("pow", input, exponent)


@lowers("relu", "relu_")
def relu(c: Call, input: Value, inplace: bool = False) -> Value:
    return c.pointwise("relu", input, exact=True)


@lowers("sigmoid", "sigmoid_")
def sigmoid(c: Call, input: Value) -> Value:
    return c.pointwise(lambda x: logistic(c, x), input)


def logistic(c: Call, x: Expr) -> Expr:
    return c.e("div", 1.0, c.e("add", c.e("exp", c.e("neg", x)), 1.0))


@lowers("silu")
def silu(c: Call, input: Value, inplace: bool = False) -> Value:
    return c.pointwise(lambda x: c.e("div", x, c.e("add", c.e("exp", c.e("neg", x)), 1.0)), input)


@lowers("gelu")
def gelu(c: Call, input: Value, approximate: str = "none") -> Value:
    def exact(x: Expr) -> Expr:
        scaled = c.e("mul", x, math.sqrt(0.5))
        inner = erf_of_eager(c, scaled) if c.target == "cpu" and x.dtype == "float32" else c.e("erf", scaled)
        return c.e("mul", c.e("mul", x, 0.5), c.e("add", inner, 1.0))

    def by_tanh(x: Expr) -> Expr:
        cube = c.e("mul", c.e("mul", x, x), x)
        inner = c.e("mul", c.e("add", x, c.e("mul", cube, 0.044715)), math.sqrt(2 / math.pi))
        return c.e("mul", c.e("mul", x, 0.5), c.e("add", c.e("tanh", inner), 1.0))

    return c.pointwise(by_tanh if approximate == "tanh" else exact, input)


def erf_of_eager(c: Call, x: Expr) -> Expr:
    """erf as eager's vectorised kernels have it on the CPU (Abramowitz and Stegun 7.1.26, error 1.5e-7)."""
    size = c.e("abs", x)
    t = c.e("div", 1.0, c.e("fma", size, 0.3275911, 1.0))
    r = c.e("fma", t, 1.061405429, -1.453152027)
    for p in (1.421413741, -0.284496736, 0.254829592):
        r = c.e("fma", r, t, p)
    tail = c.e("mul", c.e("mul", r, t), c.e("exp", c.e("neg", c.e("mul", x, x))))
    return c.e("copysign", c.e("sub", 1.0, tail), x)


def clip(c: Call, x: Expr, low: float | Expr, high: float | Expr) -> Expr:
    return c.e("minimum", c.e("maximum", x, low), high)


@lowers("hardtanh", "relu6")
def hardtanh(
    c: Call, input: Value, min_val: Number = -1.0, max_val: Number = 1.0, inplace: bool = False
) -> Value:
    low, high = (0.0, 6.0) if c.op == "relu6" else (min_val, max_val)
    return clamp(c, input, low, high)


@lowers("clamp", "clamp_", "clip")
def clamp(c: Call, input: Value, min: Any = None, max: Any = None) -> Value:
    result = input
    if min is not None:
        result = c.pointwise("maximum", result, min, exact=True)
    if max is not None:
        result = c.pointwise("minimum", result, max, exact=True)
    return result


@lowers("clamp_min", "clamp_min_")
def clamp_min(c: Call, input: Value, min: Operand) -> Value:
    return clamp(c, input, min)


@lowers("hardsigmoid")
def hardsigmoid(c: Call, input: Value, inplace: bool = False) -> Value:
    return c.pointwise(lambda x: c.e("div", clip(c, c.e("add", x, 3.0), 0.0, 6.0), 6.0), input)


@lowers("hardswish")
def hardswish(c: Call, input: Value, inplace: bool = False) -> Value:
    return c.pointwise(lambda x: c.e("div", c.e("mul", x, clip(c, c.e("add", x, 3.0), 0.0, 6.0)), 6.0), input)


@lowers("leaky_relu")
def leaky_relu(c: Call, input: Value, negative_slope: Number = 0.01, inplace: bool = False) -> Value:
    return c.pointwise(
        lambda x, s: c.e("where", c.e("gt", x, 0.0), x, c.e("mul", x, s)), input, negative_slope
    )


@lowers("elu")
def elu(c: Call, input: Value, alpha: Number = 1.0, inplace: bool = False) -> Value:
    return c.pointwise(
        lambda x, a: c.e("where", c.e("gt", x, 0.0), x, c.e("mul", a, c.e("expm1", x))), input, alpha
    )


@lowers("softplus")
def softplus(c: Call, input: Value, beta: Number = 1, threshold: Number = 20) -> Value:
    def body(x: Expr, b: Expr, t: Expr) -> Expr:
        scaled = c.e("mul", x, b)
        return c.e("where", c.e("gt", scaled, t), x, c.e("div", c.e("log1p", c.e("exp", scaled)), b))

    return c.pointwise(body, input, beta, threshold)


@lowers("prelu")
def prelu(c: Call, input: Value, weight: Value) -> Value:
    weight = along(c, weight, len(input.dims), 1)
    return c.pointwise(lambda x, w: c.e("where", c.e("gt", x, 0.0), x, c.e("mul", x, w)), input, weight)


def along(c: Call, vector: Value, rank: int, dim: int) -> Value:
    """A vector as a tensor of `rank` dimensions that runs along `dim`."""
    vector = c.trace.refresh(vector)
    if len(vector.dims) != 1:
        raise c.fail("a parameter that is no vector")
    return Value([vector.dims[0] if k == dim else () for k in range(rank)], vector.expr)


@lowers("where")
def where(c: Call, condition: Value, a: Operand, b: Operand) -> Value:
    return _select(c, condition, a, b)


def _select(c: Call, condition: Value, a: Operand, b: Operand) -> Value:
    compute = compute_type(c.out)
    values = [v for v in (condition, a, b) if isinstance(v, Value)]
    from passagent.models.expert.shapes import broadcast

    dims, parts = broadcast(c.trace, values)
    left = iter(parts)
    test = c.trace.cast(next(left), "bool")
    # Literals are rounded as eager stores them (-3.4e38 is -inf in float16).
    x, y = [
        c.trace.cast(next(left), compute)
        if isinstance(v, Value)
        else c.wide(c.finish(c.number(v, compute), c.out))
        for v in (a, b)
    ]
    return Value(dims, c.finish(c.trace.op("where", [test, x, y], compute), c.out, exact=True))


@lowers("masked_fill", "masked_fill_")
def masked_fill(c: Call, input: Value, mask: Value, value: Operand) -> Value:
    return _select(c, mask, value, input)


@lowers("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_dropout")
def dropout(c: Call, input: Value, p: Number = 0.5, training: bool = True, inplace: bool = False) -> Value:
    if training:
        raise c.fail("draws random numbers")
    return input


@lowers("contiguous", "clone", "detach", "identity")
def identity(c: Call, input: Value, memory_format: Any = torch.contiguous_format) -> Value:
    if memory_format not in (torch.contiguous_format, torch.preserve_format):
        raise c.fail(f"memory format {memory_format}")
    return input


@lowers("to", "float", "half", "bfloat16", "double", "long", "int", "bool", "type_as", "type")
def to(c: Call, input: Value, *args: Any, **kwargs: Any) -> Value:
    if kwargs.get("memory_format") not in (None, torch.preserve_format, torch.contiguous_format):
        raise c.fail("another memory format")
    return Value(input.dims, c.trace.cast(input.expr, c.out))


@lowers("fill_", "zero_")
def fill(c: Call, input: Value, value: Number = 0) -> Value:
    return Value(input.dims, c.const_value(value, c.out).expr)


@lowers("zeros_like", "ones_like", "full_like")
def full_like(c: Call, input: Value, value: Number = 0, **kwargs: Any) -> Value:
    number = {"zeros_like": 0, "ones_like": 1}.get(c.op, value)
    return Value(input.dims, c.const_value(number, c.out).expr)


@lowers("tensor", "as_tensor")
def tensor(c: Call, data: Any, dtype: torch.dtype | None = None, device: Any = None) -> Value:
    if not isinstance(data, int | float | Scalar):
        raise c.fail("data that is no number")
    return c.const_value(data, dtype_name(dtype) if dtype else c.out)
