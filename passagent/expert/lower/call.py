"""From torch operators to tensor expressions: the registry, and what all lowerings share.

A lowering is a function `(c: Call, *args, **kwargs)` with the operator's own signature; tensors arrive as
Value, literals as they are, literals that became pattern parameters as Size (int) or Scalar (float).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from passagent.expert.lower.expressions import Expr, Size, Trace, Unsupported, Value
from passagent.expert.lower.shapes import broadcast

HALF = {torch.float16, torch.bfloat16}
"""Stored in 16 bits, computed in float32; both are `half` in an expression, so one kernel serves the two."""

HALVES = {"half", "float16", "bfloat16"}
"""Names of 16-bit types: the one that the call's inputs have, and those that a literal names."""

FLOATING = {*HALVES, "float32", "float64"}
COMPUTE = {**dict.fromkeys(HALVES, "float32"), "float32": "float32", "float64": "float64", "bool": "bool"}
"""The type that arithmetic on a dtype is done in; integers in int64."""
INTEGERS = {"int64", "int32", "int16", "int8", "uint8"}


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
    if name in {*COMPUTE, *INTEGERS} - {"half"}:
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

    def fail(self, reason: str) -> Unsupported:
        return Unsupported(self.op, reason)

    def dimension(self, input: Value, dim: int) -> tuple[Value, int, Size]:
        """The tensor over present axes, a dimension counted from the front, and its size."""
        value = self.trace.refresh(input)
        dim = wrap(dim, len(value.dims))
        return value, dim, self.trace.size_of(value.dims[dim])

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

    def as_stored(self, expr: Expr, dtype: str) -> Expr:
        """The value that an element of `dtype` has for an expression, in the type that is computed with."""
        compute, short = compute_type(dtype), {*HALVES, "uint8", "int8"}
        exact = expr.dtype in {dtype, "bool"} or (dtype in HALVES and expr.dtype in short)
        exact = exact or (expr.kind == "const" and _holds(dtype, expr.data))
        expr = self.trace.cast(expr, compute)
        return expr if exact or dtype == compute else self.wide(self.finish(expr, dtype))

    def pointwise(
        self,
        function: str | Callable[..., Any],
        *inputs: Value | Number,
        common: str = "",
        out: str = "",
        exact: bool = False,
        rounds: bool = False,
    ) -> Value:
        """Apply an operator, or a function of Terms, element by element with broadcasting.

        All inputs get the dtype `common` first, that of the result if not named, integers modulo its range.
        In 16 bits numbers, and what eager takes for one, have the type that is computed with, unless the
        operator `rounds` them.
        """
        common = common or out or self.out
        dims, parts = broadcast(self.trace, [v for v in inputs if isinstance(v, Value)])
        operands = iter(parts)
        args = []
        for v in inputs:
            operand = next(operands) if isinstance(v, Value) else self.number(v, compute_type(common))
            is_known = self.target == "cpu" or operand.kind == "const"  # beside a kernel's launch
            alone = not isinstance(v, Value) or (is_known and not v.dims)
            stays = alone and not rounds and common in HALVES
            args.append(self.as_stored(operand, compute_type(common) if stays else common))
        terms = [Term(self, a) for a in args]
        result = apply(function, *terms) if isinstance(function, str) else function(*terms)
        expr = result.expr if isinstance(result, Term) else result
        return Value(dims, self.finish(expr, out or self.out, exact))

    def e(self, op: str, *operands: Expr | Term | float) -> Expr:
        """A scalar operation on expressions and numbers of one compute type."""
        args = [a.expr if isinstance(a, Term) else a for a in operands]
        chosen = args[1:] if op == "where" else args  # a choice has the type of what is chosen
        dtype = next(a.dtype for a in chosen if isinstance(a, Expr))
        exprs = [a if isinstance(a, Expr) else self.number(a, dtype) for a in args]
        return self.trace.op(op, exprs, "bool" if op in COMPARISONS else exprs[-1].dtype)

    def promoted(self, a: Value | Number, b: Value | Number) -> str:
        """The dtype that PyTorch promotes the inputs of a comparison to."""
        name = dtype_name(torch.result_type(_example(a), _example(b)))
        generic = any(isinstance(v, Value) and v.dtype == "half" for v in (a, b))
        return "half" if generic and name == "bfloat16" else name

    def const_value(self, number: Number, dtype: str) -> Value:
        return Value([], self.finish(self.number(number, compute_type(dtype)), dtype))


@dataclass(frozen=True, eq=False)
class Term:
    """An expression in a formula: Python's operators on it, and `apply`, make further ones."""

    call: Call
    expr: Expr

    @property
    def dtype(self) -> str:
        return self.expr.dtype

    def number(self, value: Number) -> Term:
        """The number in the expression's type."""
        return Term(self.call, self.call.number(value, self.dtype))


def apply(op: str, *args: Any) -> Any:
    """The Term of an operation on Terms and numbers, of which one at least is a Term."""
    call = next(a.call for a in args if isinstance(a, Term))
    return Term(call, call.e(op, *args))


def grow(x: Term) -> Any:
    """exp(x) that is added to something larger, so that its own last places do not show."""
    return apply("exp_added", x)


def shrink(x: Term) -> Any:
    """exp(x) of x up to 0, in a sum with exp(0)."""
    return apply("exp_added" if x.call.target == "cuda" else "exp_below", x)


def _operator(op: str, is_swapped: bool = False) -> Callable[..., Any]:
    return lambda *terms: apply(op, *(reversed(terms) if is_swapped else terms))


for _name, _op in {"add": "add", "sub": "sub", "mul": "mul", "truediv": "div"}.items():
    setattr(Term, f"__{_name}__", _operator(_op))
    setattr(Term, f"__r{_name}__", _operator(_op, is_swapped=True))
for _name in ("neg", "abs", "lt", "le", "gt", "ge", "and"):
    setattr(Term, f"__{_name}__", _operator(_name))


def _holds(dtype: str, number: float) -> bool:
    """Tell whether elements of a dtype, `half` being either, hold a number exactly."""
    stored = [torch.tensor(number).to(d) for d in (HALF if dtype in HALVES else [getattr(torch, dtype)])]
    return math.isnan(number) or all(value.item() == number for value in stored)


def _example(value: Value | Number) -> Any:
    """An example that PyTorch promotes like `value`; `half` is bfloat16, as only float16 is named."""
    if not isinstance(value, Value):
        return value.hint if isinstance(value, Size | Scalar) else value
    dtype = torch.bfloat16 if value.dtype == "half" else getattr(torch, value.dtype)
    return torch.empty([1] * len(value.dims), dtype=dtype, device="meta")


COMPARISONS = {"eq", "ne", "lt", "le", "gt", "ge", "and", "or", "not", "isnan"}


def check_shape(trace: Trace, op: str, result: Any, expected: Any) -> None:
    """Raise Unsupported if what was lowered has not the shape of `expected`, or is empty."""
    pairs = zip(result, expected, strict=True) if isinstance(result, tuple) else [(result, expected)]
    for value, like in pairs:
        if not isinstance(value, Value):  # a result that is lowered when it is unpacked
            continue
        shape = [trace.size_of(tuple(trace.axes_of(d))).hint for d in value.dims]
        eager_shape = [n if isinstance(n, int) else n.node.hint for n in like.shape]
        if shape != eager_shape:
            raise Unsupported(op, f"shape {shape} came out where eager has {eager_shape}")
        if any(n == 0 for n in shape):
            raise Unsupported(op, "an empty tensor")


def int_list(*sizes: Any) -> list[Any]:
    """`view(2, 3)` and `view((2, 3))` alike."""
    if len(sizes) == 1 and isinstance(sizes[0], list | tuple):
        return list(sizes[0])
    return list(sizes)


def arguments(names: str, args: Sequence[Any], named: dict[str, Any]) -> dict[str, Any]:
    """An operator's arguments by name, as far as they are given. Raises TypeError for one of another name."""
    order = names.split()
    if len(args) > len(order) or not named.keys() <= {*order}:
        raise TypeError(f"others than {', '.join(order)}")
    return dict(zip(order, args, strict=False)) | named


def wrap(dim: int, rank: int) -> int:
    """A dimension counted from the front."""
    return dim % rank if rank else 0
