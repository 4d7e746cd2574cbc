"""Pointwise operators: a table of formulas, and what is more than a formula: arithmetic, choices, casts."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from passagent.expert.lower import formulas as f
from passagent.expert.lower.call import OPS, Call, arguments, broadcast, lowers
from passagent.expert.lower.expressions import FLOATING, Expr, Number, Value, apply, compute_type, dtype_name
from passagent.expert.lower.formulas import expm1, fma, grow, log1p, minimum, on_cuda, shrink, where
from passagent.expert.lower.symbolic_sizes import Scalar

Operand = Value | Number


@dataclass(frozen=True)
class Row:
    """The formula of an operator, of one element of each argument."""

    formula: str | Callable[..., Expr]
    """An operation, or a function of an expression for each argument."""
    numbers: str = ""
    """The arguments behind the first one, with their defaults; `inplace` may follow."""
    exact: bool = False
    """True if a 16-bit type holds the result."""
    rounds: tuple[str, ...] = ()
    """Targets on which numbers have the tensor's dtype, as in eager."""
    floats: bool = False
    """True if integers are not lowered."""

    def lower(self, c: Call, *args: Any, **named: Any) -> Value:
        """The operator's result. Raises TypeError for arguments that it does not have."""
        if self.floats and c.out not in FLOATING:
            raise c.fail("on integers is not lowered")
        words = [word.partition("=") for word in f"input {self.numbers}".split()]
        names = [name for name, _, _ in words]
        values: dict[str, Any] = {name: float(default) for name, _, default in words if default}
        values |= arguments(f"{' '.join(names)} inplace", args, named)
        inputs = [values[name] for name in names]
        return c.pointwise(self.formula, *inputs, exact=self.exact, rounds=c.target in self.rounds)


BOTH = ("cpu", "cuda")
ROWS: dict[str, Row] = {
    **{
        op: Row(op)
        for op in ["exp", "log", "log2", "log10", "log1p", "expm1", "sqrt", "sin", "cos", "tanh", "erf"]
    },
    "neg negative __neg__": Row("neg", exact=True),
    "abs __abs__ absolute": Row(f.absolute, exact=True),
    "rsqrt": Row(f.inverse_root),
    "reciprocal": Row(lambda x: 1.0 / x),
    "square": Row(f.square),
    "tan": Row(lambda x: apply("tan", x) if on_cuda(x) else apply("sin", x) / apply("cos", x)),
    "sign sgn": Row(f.sign, exact=True),
    "trunc fix": Row(f.truncated, floats=True),
    "frac": Row(lambda x: x - f.truncated(x), floats=True),
    "lerp": Row(f.lerp, "end weight"),
    "addcmul": Row(lambda x, a, b, by: fma(by * a, b, x), "tensor1 tensor2 value=1", floats=True),
    "addcdiv": Row(
        lambda x, a, b, by: fma(by, a / b, x) if on_cuda(x) else x + by * a / b,
        "tensor1 tensor2 value=1",
        floats=True,
    ),
    "relu": Row("relu", exact=True),
    "sigmoid": Row(f.logistic),
    "silu": Row(lambda x: x / (grow(-x) + 1.0)),
    "hardsigmoid": Row(lambda x: f.sixth(f.clip(x + 3.0, 0.0, 6.0))),
    "hardswish": Row(lambda x: f.sixth(x * f.clip(x + 3.0, 0.0, 6.0))),
    "leaky_relu": Row(lambda x, slope: where(x > 0.0, x, x * slope), "negative_slope=0.01"),
    "elu": Row(lambda x, alpha: f.by_sign(x, x, alpha * expm1(x)), "alpha=1"),
    "celu": Row(lambda x, a: f.by_sign(x, x, a * expm1(x * (1.0 / a) if on_cuda(x) else x / a)), "alpha=1"),
    "selu": Row(f.selu),
    "mish": Row(f.mish),
    "softplus": Row(f.softplus, "beta=1 threshold=20"),
    "softshrink": Row(f.softshrink, "lambd=0.5", rounds=("cuda",)),
    "hardshrink": Row(
        lambda x, by: where((x >= -by) & (x <= by), 0.0, x), "lambd=0.5", exact=True, rounds=BOTH
    ),
    "threshold": Row(lambda x, t, v: where(x <= t, v, x), "threshold value", rounds=("cuda",)),
    "logsigmoid log_sigmoid": Row(lambda x: minimum(x, 0.0) - log1p(shrink(-abs(x)))),
}

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
        return c.pointwise(partial(f.scaled_sum, name), a, b, alpha, rounds=c.target in row.rounds)
    if name == "div" and not isinstance(a, Value):  # `number / x` is x.reciprocal() * number
        return c.pointwise("mul", c.pointwise(lambda x: 1.0 / x, b), a)
    if name == "div" and c.target == "cuda" and not isinstance(b, Value):
        return c.pointwise(f.by_reciprocal, a, b)
    of_bools = {"add": "or", "mul": "and"} if c.out == "bool" else {}
    return c.pointwise(of_bools.get(name, name), a, b, exact=row.exact, rounds=c.target in row.rounds)


def _comparison(op: str, c: Call, a: Operand, b: Operand) -> Value:
    return c.pointwise(op, a, b, common=c.promoted(a, b), out="bool", rounds=True)


def _logical(op: str, c: Call, *operands: Operand) -> Value:
    if c.out != "bool":
        raise c.fail("on integers is not lowered")
    if op == "ne" and any(isinstance(v, Value) and v.dtype != "bool" for v in operands):
        raise c.fail("on numbers is not lowered")
    return c.pointwise(op, *operands, common="bool", out="bool")


_COMPARISONS = {
    "eq": "eq __eq__", "ne": "ne __ne__ not_equal", "lt": "lt __lt__ less", "le": "le __le__ less_equal",
    "gt": "gt __gt__ greater", "ge": "ge __ge__ greater_equal",
}  # fmt: skip
_LOGICAL = {
    "and": "and_ __and__ logical_and", "or": "or_ __or__ logical_or", "ne": "xor __xor__ logical_xor",
    "not": "invert logical_not __invert__ bitwise_not",
}  # fmt: skip
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


@lowers("floor", "ceil", "round")
def round_(c: Call, input: Value) -> Value:
    """Down, up, or to the nearest integer, halves to the even one."""
    name = c.op.rstrip("_")
    if c.out not in FLOATING:
        if name == "round":
            raise c.fail("on integers is not lowered")
        return input
    return c.pointwise("rint" if name == "round" else name, input)


@lowers("pow", "__pow__")
def pow_(c: Call, input: Operand, exponent: Operand) -> Value:
    def cube(x: Expr) -> Expr:
        square = f.square(x)
        if c.target == "cuda":  # where each product is rounded to the tensor's type
            square = square.stored(c.out).wide()
        return apply("mul", square, x)

    simple: dict[float, Callable[[Expr], Expr]] = {2: f.square, 3: cube}
    if c.out in FLOATING:
        simple |= {0.5: lambda x: apply("sqrt", x), 1: lambda x: x}
        simple |= {-0.5: f.inverse_root_of_any, -1: lambda x: 1.0 / x}
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


@lowers("softsign")
def softsign(c: Call, input: Value) -> Value:
    if input.dtype in FLOATING:
        return c.pointwise("div", input, c.pointwise(lambda x: abs(x) + 1.0, input))

    def size_and_one(x: Expr) -> Expr:  # integers stay what they are until they are divided
        size = f.absolute(x).stored(input.dtype)
        return apply("add", size.wide(), c.trace.number(1, "int64"))

    above = "int64" if input.dtype == "bool" else input.dtype  # True + 1 is 2
    return c.pointwise("div", input, c.pointwise(size_and_one, input, common=input.dtype, out=above))


@lowers("rrelu")
def rrelu(
    c: Call, input: Value, lower: float = 0.125, upper: float = 1 / 3, training: bool = False, *_: bool
) -> Value:
    if training:
        raise c.fail("draws random numbers")
    return OPS["leaky_relu"](c, input, (lower + upper) / 2)


def along(c: Call, vector: Value, rank: int, dim: int) -> Value:
    """A vector as a tensor of `rank` dimensions that runs along `dim`."""
    vector = vector.refresh()
    if len(vector.dims) != 1:
        raise c.fail("a parameter that is no vector")
    return Value([vector.dims[0] if k == dim else () for k in range(rank)], vector.expr)


@lowers("where")
def select(c: Call, condition: Value, a: Operand, b: Operand) -> Value:
    compute = compute_type(c.out)
    dims, parts = broadcast([v for v in (condition, a, b) if isinstance(v, Value)])
    operands = iter(parts)
    test = next(operands).cast("bool")
    # Literals are rounded as eager stores them (-3.4e38 is -inf in float16).
    x, y = [
        next(operands).cast(compute) if isinstance(v, Value) else c.trace.number(v, compute).through(c.out)
        for v in (a, b)
    ]
    return Value(dims, where(test, x, y).stored(c.out, exact=True))


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
    return input.cast(c.out)


@lowers("fill_", "zero_", "zeros_like", "ones_like", "full_like")
def fill(c: Call, input: Value, value: Number = 0, **kwargs: Any) -> Value:
    number = 1 if c.op == "ones_like" else kwargs.get("fill_value", value)
    return Value(input.dims, c.constant(number).expr)


@lowers("tensor", "as_tensor")
def tensor(c: Call, data: Any, dtype: torch.dtype | None = None, device: Any = None) -> Value:
    if not isinstance(data, int | float | Scalar):
        raise c.fail("data that is no number")
    return c.constant(data, dtype_name(dtype) if dtype else c.out)


COMPOSED: dict[str, Callable[..., Value]] = {
    "rsub": lambda c, a, b: OPS["sub"](c, b, a),
    "clamp_min": clamp,
    "clamp_max": lambda c, input, max: clamp(c, input, None, max),
    "hardtanh": lambda c, input, min_val=-1.0, max_val=1.0, inplace=False: clamp(c, input, min_val, max_val),
    "relu6": lambda c, input, inplace=False: clamp(c, input, 0.0, 6.0),
    "tanhshrink": lambda c, input: c.pointwise("sub", input, c.pointwise("tanh", input)),
    "glu": lambda c, input, dim=-1: c.pointwise(
        lambda x, y: x * f.logistic(y), *OPS["chunk"](c, input, 2, dim)
    ),
    "gelu": lambda c, input, approximate="none": c.pointwise(f.GELUS[approximate], input),
    "prelu": lambda c, input, weight: c.pointwise(
        lambda x, w: where(x > 0.0, x, x * w), input, along(c, weight, len(input.dims), 1)
    ),
    "masked_fill": lambda c, input, mask, value: select(c, mask, value, input),
}
"""Operators that are others with other arguments."""

OPS.update(COMPOSED)
for _table, _lower in ((ROWS, lambda row: row.lower), (ARITHMETIC, lambda row: partial(_arithmetic, row))):
    OPS.update({name: _lower(row) for names, row in _table.items() for name in names.split()})
for _names, _of in ((_COMPARISONS, _comparison), (_LOGICAL, _logical)):
    OPS.update({name: partial(_of, op) for op, names in _names.items() for name in names.split()})
