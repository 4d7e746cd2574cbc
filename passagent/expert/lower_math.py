"""Pointwise operators."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from passagent.expert.expressions import Expr, Value
from passagent.expert.lowering import (
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


def _binary(name: str, *aliases: str, exact: bool = False, rounds: Sequence[str] = ()) -> None:
    """Register an operator; on the targets in `rounds` numbers have the tensor's dtype, as in eager."""

    def lower(
        c: Call, a: Operand, b: Operand, *, alpha: Number = 1, rounding_mode: str | None = None
    ) -> Value:
        if rounding_mode is not None:
            raise c.fail("a rounding mode is not lowered")
        if alpha != 1 and c.out == "bool":  # True + 2 * True is True
            return c.pointwise("or", a, b) if alpha else c.pointwise(lambda x, y: x, a, b)
        if alpha != 1:
            return c.pointwise(partial(_scaled_sum, c, name), a, b, alpha, rounds=c.target in rounds)
        if name == "div" and not isinstance(a, Value):  # `number / x` is x.reciprocal() * number
            return c.pointwise("mul", c.pointwise(lambda x: c.e("div", 1.0, x), b), a)
        if name == "div" and c.target == "cuda" and not isinstance(b, Value):
            return c.pointwise(lambda x, y: _by_reciprocal(c, x, y), a, b)
        of_bools = {"add": "or", "mul": "and"} if c.out == "bool" else {}
        return c.pointwise(of_bools.get(name, name), a, b, exact=exact, rounds=c.target in rounds)

    for alias in (name, *aliases):
        OPS[alias] = lower


def _scaled_sum(c: Call, name: str, x: Expr, y: Expr, by: Expr) -> Expr:
    """x + by * y or x - by * y: one multiply-add in eager's kernels."""
    if x.dtype in FLOATING:
        return c.e("fma", c.e("neg", by) if name == "sub" else by, y, x)
    return c.e(name, x, c.e("mul", by, y))


def _by_reciprocal(c: Call, x: Expr, y: Expr) -> Expr:
    """Eager's CUDA kernel multiplies by the reciprocal of a number that is known before the launch."""
    if y.kind == "const" and y.data:
        return c.e("mul", x, reciprocal_of(x.dtype, y.data))
    return c.e("mul", x, c.e("div", 1.0, y))


def reciprocal_of(dtype: str, number: float) -> float:
    """1 / number as arithmetic of that dtype has it."""
    kind = torch.float64 if dtype == "float64" else torch.float32
    return float(torch.tensor(number, dtype=kind).reciprocal())


_binary("add", "iadd", "__add__", "__radd__", rounds=["cpu"])
_binary("sub", "isub", "__sub__", "subtract", rounds=["cpu"])
_binary("mul", "imul", "__mul__", "multiply", "__rmul__")
_binary("div", "truediv", "itruediv", "__truediv__", "divide", "true_divide")
_binary("maximum", exact=True, rounds=["cpu", "cuda"])
_binary("minimum", exact=True, rounds=["cpu", "cuda"])


def _comparison(name: str, *aliases: str) -> None:
    def lower(c: Call, a: Operand, b: Operand) -> Value:
        return c.pointwise(name, a, b, common=c.promoted(a, b), out="bool", rounds=True)

    for alias in (name, f"__{name}__", *aliases):
        OPS[alias] = lower


_comparison("eq")
_comparison("ne", "not_equal")
_comparison("lt", "less")
_comparison("le", "less_equal")
_comparison("gt", "greater")
_comparison("ge", "greater_equal")


@lowers("rsub")
def rsub(c: Call, a: Operand, b: Operand) -> Value:
    return OPS["sub"](c, b, a)  # type: ignore[no-any-return]


@lowers("and_", "__and__", "logical_and")
def and_(c: Call, a: Operand, b: Operand) -> Value:
    if c.out != "bool":
        raise c.fail("on integers is not lowered")
    return c.pointwise("and", a, b, common="bool")


@lowers("or_", "__or__", "logical_or")
def or_(c: Call, a: Operand, b: Operand) -> Value:
    if c.out != "bool":
        raise c.fail("on integers is not lowered")
    return c.pointwise("or", a, b, common="bool")


@lowers("xor", "__xor__", "logical_xor")
def xor(c: Call, a: Operand, b: Operand) -> Value:
    if c.out != "bool":
        raise c.fail("on integers is not lowered")
    if any(isinstance(v, Value) and v.dtype != "bool" for v in (a, b)):
        raise c.fail("on numbers is not lowered")
    return c.pointwise("ne", a, b, common="bool", out="bool")


@lowers("invert", "logical_not", "__invert__", "bitwise_not")
def invert(c: Call, a: Value) -> Value:
    if c.out != "bool":
        raise c.fail("on integers is not lowered")
    return c.pointwise("not", a, common="bool")


def _unary(name: str, *aliases: str, exact: bool = False) -> None:
    def lower(c: Call, input: Value, inplace: bool = False) -> Value:
        if c.out not in FLOATING and name in {"floor", "ceil"}:
            return input
        if c.out not in FLOATING and name == "abs":
            return c.pointwise(lambda x: c.e("maximum", x, c.e("neg", x)), input)
        return c.pointwise(name, input, exact=exact)

    for alias in (name, *aliases):
        OPS[alias] = lower


for _op in ("exp", "log", "sqrt", "sin", "cos", "tanh", "erf", "log1p", "expm1", "floor", "ceil"):
    _unary(_op)
_unary("neg", "negative", "__neg__", exact=True)
_unary("abs", "__abs__", "absolute", exact=True)


@lowers("rsqrt")
def rsqrt(c: Call, input: Value) -> Value:
    return c.pointwise(lambda x: inverse_root(c, x), input)


def inverse_root(c: Call, x: Expr) -> Expr:
    """1 / sqrt(x): on CUDA eager takes the machine's own approximation."""
    return c.e("rsqrt", x) if c.target == "cuda" else c.e("div", 1.0, c.e("sqrt", x))


def inverse_root_of_any(c: Call, x: Expr) -> Expr:
    """1 / sqrt(x), of subnormal numbers, too, which Triton's own form takes for zero."""
    if c.target == "cpu" or x.dtype != "float32":
        return inverse_root(c, x)
    tiny = c.e("lt", x, 2.0**-126)
    root = inverse_root(c, c.e("where", tiny, c.e("mul", x, 2.0**24), x))
    return c.e("mul", root, c.e("where", tiny, c.number(2.0**12, x.dtype), 1.0))


@lowers("reciprocal")
def reciprocal(c: Call, input: Value) -> Value:
    return c.pointwise(lambda x: c.e("div", 1.0, x), input)


@lowers("square")
def square(c: Call, input: Value) -> Value:
    return c.pointwise(lambda x: c.e("mul", x, x), input)


@lowers("pow", "__pow__")
def pow_(c: Call, input: Operand, exponent: Operand) -> Value:

    def cube(x: Expr) -> Expr:
        square = c.e("mul", x, x)
        if c.target == "cuda":  # where each product is rounded to the tensor's type
            square = c.wide(c.finish(square, c.out))
        return c.e("mul", square, x)

    simple = {
        2: lambda x: c.e("mul", x, x),
        3: cube,
        0.5: lambda x: c.e("sqrt", x),
    }
    simple |= {
        1: lambda x: x,
        -0.5: lambda x: inverse_root_of_any(c, x),
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
    return c.pointwise("pow", input, exponent, rounds=True)


def clip(c: Call, x: Expr, low: float | Expr, high: float | Expr) -> Expr:
    return c.e("minimum", c.e("maximum", x, low), high)


@lowers("clamp", "clip")
def clamp(c: Call, input: Value, min: Any = None, max: Any = None) -> Value:
    result = input
    for name, bound in (("maximum", min), ("minimum", max)):
        if bound is not None:
            result = c.pointwise(name, result, bound, exact=True, rounds=True)
    return result


@lowers("clamp_min")
def clamp_min(c: Call, input: Value, min: Operand) -> Value:
    return clamp(c, input, min)


def along(c: Call, vector: Value, rank: int, dim: int) -> Value:
    """A vector as a tensor of `rank` dimensions that runs along `dim`."""
    vector = c.trace.refresh(vector)
    if len(vector.dims) != 1:
        raise c.fail("a parameter that is no vector")
    return Value([vector.dims[0] if k == dim else () for k in range(rank)], vector.expr)


@lowers("clamp_max")
def clamp_max(c: Call, input: Value, max: Operand) -> Value:
    return clamp(c, input, None, max)


@lowers("sign", "sgn")
def sign(c: Call, input: Value) -> Value:
    if c.out == "bool":
        raise c.fail("on booleans is not lowered")

    def body(x: Expr) -> Expr:
        unit, zero = c.number(1, x.dtype), c.number(0, x.dtype)
        return c.e(
            "where", c.e("gt", x, zero), unit, c.e("where", c.e("lt", x, zero), c.number(-1, x.dtype), zero)
        )

    return c.pointwise(body, input, exact=True)


@lowers("trunc", "fix", "frac")
def trunc(c: Call, input: Value) -> Value:
    _floats_only(c)

    def body(x: Expr) -> Expr:
        whole = c.e("where", c.e("lt", x, 0.0), c.e("ceil", x), c.e("floor", x))
        return c.e("sub", x, whole) if c.op == "frac" else whole

    return c.pointwise(body, input)


@lowers("round")
def round_(c: Call, input: Value, decimals: int = 0) -> Value:
    """To the nearest integer, halves to the even one."""
    _floats_only(c)
    if decimals:
        raise c.fail("to decimals is not lowered")

    return c.pointwise("rint", input)


def _floats_only(c: Call) -> None:
    if c.out not in FLOATING:
        raise c.fail("on integers is not lowered")


@lowers("log2", "log10")
def log_of(c: Call, input: Value) -> Value:
    return c.pointwise(c.op, input)


@lowers("tan")
def tan(c: Call, input: Value) -> Value:
    if c.target == "cuda":
        return c.pointwise("tan", input)
    return c.pointwise(lambda x: c.e("div", c.e("sin", x), c.e("cos", x)), input)


@lowers("isnan", "isinf", "isfinite", "isposinf", "isneginf")
def is_special(c: Call, input: Value) -> Value:
    if input.dtype not in FLOATING:
        return c.pointwise(lambda x: c.trace.const(c.op == "isfinite", "bool"), input, common="bool")
    inf = math.inf
    tests: dict[str, Any] = {
        "isnan": lambda x: c.e("ne", x, x),
        "isinf": lambda x: c.e("eq", c.e("abs", x), inf),
        "isfinite": lambda x: c.e("lt", c.e("abs", x), inf),
        "isposinf": lambda x: c.e("eq", x, inf),
        "isneginf": lambda x: c.e("eq", x, -inf),
    }
    return c.pointwise(tests[c.op], input, common=input.dtype)


@lowers("lerp")
def lerp(c: Call, input: Value, end: Value, weight: Operand) -> Value:
    def body(a: Expr, b: Expr, w: Expr) -> Expr:
        by = c.e("sub", b, a)
        if c.target == "cuda":
            far = c.e("fma", c.e("neg", by), c.e("sub", 1.0, w), b)
        else:
            far = c.e("fma", by, c.e("sub", w, 1.0), b)
        return c.e("where", c.e("lt", c.e("abs", w), 0.5), c.e("fma", w, by, a), far)

    return c.pointwise(body, input, end, weight)


@lowers("addcmul", "addcdiv")
def addcmul(c: Call, input: Value, tensor1: Value, tensor2: Value, *, value: Number = 1) -> Value:
    _floats_only(c)

    def body(x: Expr, a: Expr, b: Expr, by: Expr) -> Expr:
        if c.op == "addcmul":
            return c.e("fma", c.e("mul", by, a), b, x)
        if c.target == "cuda":
            return c.e("fma", by, c.e("div", a, b), x)
        return c.e("add", x, c.e("div", c.e("mul", by, a), b))

    return c.pointwise(body, input, tensor1, tensor2, value)


@lowers("where")
def where(c: Call, condition: Value, a: Operand, b: Operand) -> Value:
    return _select(c, condition, a, b)


def _select(c: Call, condition: Value, a: Operand, b: Operand) -> Value:
    compute = compute_type(c.out)
    values = [v for v in (condition, a, b) if isinstance(v, Value)]
    from passagent.expert.shapes import broadcast

    dims, parts = broadcast(c.trace, values)
    operands = iter(parts)
    test = c.trace.cast(next(operands), "bool")
    # Literals are rounded as eager stores them (-3.4e38 is -inf in float16).
    x, y = [
        c.trace.cast(next(operands), compute)
        if isinstance(v, Value)
        else c.as_stored(c.number(v, compute), c.out)
        for v in (a, b)
    ]
    return Value(dims, c.finish(c.trace.op("where", [test, x, y], compute), c.out, exact=True))


@lowers("masked_fill")
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
