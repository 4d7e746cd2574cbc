"""From torch operators to tensor expressions: the registry, and what all lowerings share.

A lowering is a function `(c: Call, *args, **kwargs)` with the operator's own signature; tensors arrive as
Value, literals as they are, literals that became pattern parameters as Size (int) or Scalar (float).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from passagent.expert.expressions import Expr, Size, Trace, Unsupported, Value
from passagent.expert.shapes import broadcast

HALF = {torch.float16, torch.bfloat16}
"""Stored in 16 bits, computed in float32; both are `half` in an expression, so one kernel serves the two."""

HALVES = {"half", "float16", "bfloat16"}
"""Names of 16-bit types: the one that the call's inputs have, and those that a literal names."""

FLOATING = {*HALVES, "float32", "float64"}
COMPUTE = {**dict.fromkeys(HALVES, "float32"), "float32": "float32", "float64": "float64", "bool": "bool"}
"""The type that arithmetic on a dtype is done in; integers in int64."""


@dataclass(frozen=True)
class Scalar:
    """A float literal that is a parameter of the pattern."""

    hint: float
    name: str


Number = int | float | bool | Size | Scalar
Lowered = Callable[..., Any]
OPS: dict[str, Lowered] = {}


def lowers(*names: str) -> Callable[[Lowered], Lowered]:
    """Register a lowering under the names of functions and methods."""

    def register(function: Lowered) -> Lowered:
        for name in names:
            OPS[name] = function
        return function

    return register


def dtype_name(dtype: torch.dtype) -> str:
    """`float16`, `float32`, `int64`, `bool`, ... Raises Unsupported for complex and quantised types."""
    name = str(dtype).removeprefix("torch.")
    if name in {
        "float16",
        "bfloat16",
        "float32",
        "float64",
        "int64",
        "int32",
        "int16",
        "int8",
        "uint8",
        "bool",
    }:
        return name
    raise Unsupported("dtype", name)


def compute_type(dtype: str) -> str:
    return COMPUTE.get(dtype, "int64")


@dataclass
class Call:
    """One operator call being lowered."""

    trace: Trace
    op: str
    out: str
    """dtype of the (first) result."""
    target: str
    """cpu or cuda: some operators round at other places there."""
    argument_types: dict[int, torch.dtype]
    """torch dtype of each Value argument, by id()."""

    def fail(self, reason: str) -> Unsupported:
        return Unsupported(self.op, reason)

    def number(self, value: Number, dtype: str) -> Expr:
        """A scalar as an expression of a compute type."""
        if isinstance(value, Size):
            return self.trace.cast(self.trace.integer(value), dtype)
        if isinstance(value, Scalar):
            return self.trace.cast(self.trace.make("param", value.name, (), "float64"), dtype)
        kind = {"float32": float, "float64": float, "bool": bool}.get(dtype, int)
        return self.trace.const(kind(value), dtype)

    def finish(self, expr: Expr, dtype: str, exact: bool = False) -> Expr:
        """The result as eager stores it: rounded to `dtype` unless it is `exact` there."""
        if expr.dtype == dtype:
            return expr
        if exact and dtype in HALVES and expr.dtype == "float32":
            return self.trace.op("as_half", [expr], dtype)
        return self.trace.cast(expr, dtype)

    def wide(self, expr: Expr) -> Expr:
        """A stored element in the type that is computed with."""
        return self.trace.cast(expr, compute_type(expr.dtype))

    def pointwise(
        self,
        function: str | Callable[..., Expr],
        *inputs: Value | Number,
        compute: str = "",
        out: str = "",
        exact: bool = False,
    ) -> Value:
        """Apply an operator, or a function of expressions, element by element with broadcasting."""
        out = out or self.out
        compute = compute or compute_type(out)
        values = [v for v in inputs if isinstance(v, Value)]
        dims, parts = broadcast(self.trace, values)
        left = iter(parts)
        args = [
            self.trace.cast(next(left), compute) if isinstance(v, Value) else self.number(v, compute)
            for v in inputs
        ]
        expr = self.e(function, *args) if isinstance(function, str) else function(*args)
        return Value(dims, self.finish(expr, out, exact))

    def e(self, op: str, *args: Expr | float) -> Expr:
        """A scalar operation on expressions and numbers of one compute type."""
        chosen = args[1:] if op == "where" else args  # a choice has the type of what is chosen
        dtype = next(a.dtype for a in chosen if isinstance(a, Expr))
        exprs = [a if isinstance(a, Expr) else self.number(a, dtype) for a in args]
        return self.trace.op(op, exprs, "bool" if op in COMPARISONS else exprs[-1].dtype)

    def exp_added(self, x: Expr) -> Expr:
        """exp(x) that is added to something larger, so that its own last places do not show."""
        return self.e("exp_added" if self.target == "cuda" else "exp", x)

    def promoted(self, *inputs: Value | Number) -> str:
        """The compute type that PyTorch promotes the inputs of a comparison to."""
        order = ["bool", "int64", "float32", "float64"]
        best = 0
        floats = any(isinstance(v, float | Scalar) for v in inputs)
        for v in inputs:
            if isinstance(v, Value):
                best = max(best, order.index(compute_type(v.dtype)))
            elif isinstance(v, int | Size) and not isinstance(v, bool):
                best = max(best, 1)
        return "float32" if floats and best < 2 else order[best]

    def const_value(self, number: Number, dtype: str) -> Value:
        return Value([], self.finish(self.number(number, compute_type(dtype)), dtype))


COMPARISONS = {"eq", "ne", "lt", "le", "gt", "ge", "and", "or", "not", "isnan"}


def check_shape(trace: Trace, op: str, result: Any, expected: Any) -> None:
    """Raise Unsupported if what was lowered has not the shape of `expected`, or is empty."""
    pairs = zip(result, expected, strict=True) if isinstance(result, tuple) else [(result, expected)]
    for value, like in pairs:
        if not isinstance(value, Value):  # a result that is lowered when it is unpacked
            continue
        shape = [trace.size_of(tuple(trace.axes_of(d))).hint for d in value.dims]
        wanted = [n if isinstance(n, int) else n.node.hint for n in like.shape]
        if shape != wanted:
            raise Unsupported(op, f"shape {shape} came out where eager has {wanted}")
        if any(n == 0 for n in shape):
            raise Unsupported(op, "an empty tensor")


def int_list(*sizes: Any) -> list[Any]:
    """`view(2, 3)` and `view((2, 3))` alike."""
    if len(sizes) == 1 and isinstance(sizes[0], list | tuple):
        return list(sizes[0])
    return list(sizes)


def wrap(dim: int, rank: int) -> int:
    """A dimension counted from the front."""
    return dim % rank if rank else 0
