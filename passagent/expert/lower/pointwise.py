"""Pointwise operators whose result is more than a formula of formulas.py: arithmetic, choices, casts."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from passagent.expert.lower.call import (
    FLOATING,
    OPS,
    Call,
    Number,
    Scalar,
    Term,
    apply,
    compute_type,
    dtype_name,
    lowers,
)
from passagent.expert.lower.expressions import Expr, Value
from passagent.expert.lower.formulas import (
    BOTH,
    Row,
    fma,
    gelu_by_erf,
    gelu_by_tanh,
    inverse_root_of_any,
    logistic,
    maximum,
    reciprocal_of,
    where,
)
from passagent.expert.lower.shapes import broadcast

Operand = Value | Number

ARITHMETIC: dict[str, Row] = {
    "add iadd __add__ __radd__": Row("add", rounds=("cpu",)),
    "sub isub __sub__ subtract": Row("sub", rounds=("cpu",)),
    "mul imul __mul__ multiply __rmul__": Row("mul"),
    "div truediv itruediv __truediv__ divide true_divide": Row("div"),
    "maximum": Row("maximum", exact=True, rounds=BOTH),
    "minimum": Row("minimum", exact=True, rounds=BOTH),
}


def _arithmetic(
    row: Row, c: Call, a: Operand, b: Operand, *, alpha: Number = 1, rounding_mode: str | None = None
) -> Value:
    name = str(row.formula)
    if rounding_mode is not None:
        raise c.fail("a rounding mode is not lowered")
    if alpha != 1 and c.out == "bool":  # True + 2 * True is True
        return c.pointwise("or", a, b) if alpha else c.pointwise(lambda x, y: x, a, b)
    if alpha != 1:
        return c.pointwise(partial(_scaled_sum, name), a, b, alpha, rounds=c.target in row.rounds)
    if name == "div" and not isinstance(a, Value):  # `number / x` is x.reciprocal() * number
        return c.pointwise("mul", c.pointwise(lambda x: 1.0 / x, b), a)
    if name == "div" and c.target == "cuda" and not isinstance(b, Value):
        return c.pointwise(_by_reciprocal, a, b)
    of_bools = {"add": "or", "mul": "and"} if c.out == "bool" else {}
    return c.pointwise(of_bools.get(name, name), a, b, exact=row.exact, rounds=c.target in row.rounds)


def _scaled_sum(name: str, x: Any, y: Any, by: Any) -> Any:
    """x + by * y or x - by * y: one multiply-add in eager's kernels."""
    if x.dtype in FLOATING:
        return fma(-by if name == "sub" else by, y, x)
    return apply(name, x, by * y)


def _by_reciprocal(x: Any, y: Any) -> Any:
    """Eager's CUDA kernel multiplies by the reciprocal of a number that is known before the launch."""
    known = y.expr.kind == "const" and y.expr.data
    return x * (reciprocal_of(x.dtype, y.expr.data) if known else 1.0 / y)


for _names, _row in ARITHMETIC.items():
    OPS.update(dict.fromkeys(_names.split(), partial(_arithmetic, _row)))


def _comparison(op: str, c: Call, a: Operand, b: Operand) -> Value:
    return c.pointwise(op, a, b, common=c.promoted(a, b), out="bool", rounds=True)


for _name, _long in {
    "eq": "eq", "ne": "not_equal", "lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal"
}.items():  # fmt: skip
    OPS.update(dict.fromkeys((_name, f"__{_name}__", _long), partial(_comparison, _name)))


def _logical(op: str, c: Call, *operands: Operand) -> Value:
    if c.out != "bool":
        raise c.fail("on integers is not lowered")
    if op == "ne" and any(isinstance(v, Value) and v.dtype != "bool" for v in operands):
        raise c.fail("on numbers is not lowered")
    return c.pointwise(op, *operands, common="bool", out="bool")


for _op, _names in {
    "and": "and_ __and__ logical_and",
    "or": "or_ __or__ logical_or",
    "ne": "xor __xor__ logical_xor",
    "not": "invert logical_not __invert__ bitwise_not",
}.items():
    OPS.update(dict.fromkeys(_names.split(), partial(_logical, _op)))

_SPECIAL: dict[str, Callable[[Any], Any]] = {
    "isnan": lambda x: apply("ne", x, x),
    "isinf": lambda x: apply("eq", abs(x), math.inf),
    "isfinite": lambda x: abs(x) < math.inf,
    "isposinf": lambda x: apply("eq", x, math.inf),
    "isneginf": lambda x: apply("eq", x, -math.inf),
}


@lowers(*_SPECIAL)
def is_special(c: Call, input: Value) -> Value:
    if input.dtype not in FLOATING:
        return c.pointwise(lambda x: c.trace.const(c.op == "isfinite", "bool"), input, common="bool")
    return c.pointwise(_SPECIAL[c.op], input, common=input.dtype)


@lowers("rsub")
def rsub(c: Call, a: Operand, b: Operand) -> Value:
    return OPS["sub"](c, b, a)  # type: ignore[no-any-return]


@lowers("floor", "ceil", "round")
def round_(c: Call, input: Value, decimals: int = 0) -> Value:
    """Down, up, or to the nearest integer, halves to the even one."""
    name = c.op.rstrip("_")
    if c.out not in FLOATING:
        if name == "round":
            raise c.fail("on integers is not lowered")
        return input
    if decimals:
        raise c.fail("to decimals is not lowered")
    return c.pointwise("rint" if name == "round" else name, input)


@lowers("pow", "__pow__")
def pow_(c: Call, input: Operand, exponent: Operand) -> Value:
    def cube(x: Any) -> Any:
        square = x * x
        if c.target == "cuda":  # where each product is rounded to the tensor's type
            square = Term(c, c.wide(c.finish(square.expr, c.out)))
        return square * x

    simple: dict[float, Callable[[Any], Any]] = {2: lambda x: x * x, 3: cube}
    if c.out in FLOATING:
        simple |= {0.5: lambda x: apply("sqrt", x), 1: lambda x: x}
        simple |= {-0.5: inverse_root_of_any, -1: lambda x: 1.0 / x}
    plain = int | float if c.out in FLOATING else int
    if isinstance(input, Value) and isinstance(exponent, plain) and exponent in simple:
        return c.pointwise(simple[exponent], input)
    if c.out not in FLOATING:
        raise c.fail("on integers is not lowered")
    return c.pointwise("pow", input, exponent, rounds=True)


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


@lowers("clamp_max")
def clamp_max(c: Call, input: Value, max: Operand) -> Value:
    return clamp(c, input, None, max)


@lowers("hardtanh")
def hardtanh(
    c: Call, input: Value, min_val: Number = -1.0, max_val: Number = 1.0, inplace: bool = False
) -> Value:
    return clamp(c, input, min_val, max_val)


@lowers("relu6")
def relu6(c: Call, input: Value, inplace: bool = False) -> Value:
    return clamp(c, input, 0.0, 6.0)


@lowers("gelu")
def gelu(c: Call, input: Value, approximate: str = "none") -> Value:
    return c.pointwise(gelu_by_tanh if approximate == "tanh" else gelu_by_erf, input)


@lowers("tanhshrink")
def tanhshrink(c: Call, input: Value) -> Value:
    return c.pointwise("sub", input, c.pointwise("tanh", input))


@lowers("softsign")
def softsign(c: Call, input: Value) -> Value:
    if input.dtype in FLOATING:
        return c.pointwise("div", input, c.pointwise(lambda x: abs(x) + 1.0, input))

    def size_and_one(x: Any) -> Expr:  # integers stay what they are until they are divided
        size = c.finish(maximum(x, -x).expr, input.dtype)
        return c.e("add", c.wide(size), c.number(1, "int64"))

    above = "int64" if input.dtype == "bool" else input.dtype  # True + 1 is 2
    return c.pointwise("div", input, c.pointwise(size_and_one, input, common=input.dtype, out=above))


@lowers("rrelu")
def rrelu(
    c: Call, input: Value, lower: float = 0.125, upper: float = 1 / 3, training: bool = False, *_: bool
) -> Value:
    if training:
        raise c.fail("draws random numbers")
    return OPS["leaky_relu"](c, input, (lower + upper) / 2)  # type: ignore[no-any-return]


def along(c: Call, vector: Value, rank: int, dim: int) -> Value:
    """A vector as a tensor of `rank` dimensions that runs along `dim`."""
    vector = c.trace.refresh(vector)
    if len(vector.dims) != 1:
        raise c.fail("a parameter that is no vector")
    return Value([vector.dims[0] if k == dim else () for k in range(rank)], vector.expr)


@lowers("prelu")
def prelu(c: Call, input: Value, weight: Value) -> Value:
    weight = along(c, weight, len(input.dims), 1)
    return c.pointwise(lambda x, w: where(x > 0.0, x, x * w), input, weight)


@lowers("glu")
def glu(c: Call, input: Value, dim: int = -1) -> Value:
    return c.pointwise(lambda x, y: x * logistic(y), *OPS["chunk"](c, input, 2, dim))


@lowers("where")
def select(c: Call, condition: Value, a: Operand, b: Operand) -> Value:
    compute = compute_type(c.out)
    dims, parts = broadcast(c.trace, [v for v in (condition, a, b) if isinstance(v, Value)])
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
    return select(c, mask, value, input)


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


@lowers("fill_", "zero_", "zeros_like", "ones_like", "full_like")
def fill(c: Call, input: Value, value: Number = 0, **kwargs: Any) -> Value:
    number = 1 if c.op == "ones_like" else kwargs.get("fill_value", value)
    return Value(input.dims, c.const_value(number, c.out).expr)


@lowers("tensor", "as_tensor")
def tensor(c: Call, data: Any, dtype: torch.dtype | None = None, device: Any = None) -> Value:
    if not isinstance(data, int | float | Scalar):
        raise c.fail("data that is no number")
    return c.const_value(data, dtype_name(dtype) if dtype else c.out)
