"""Tensor expressions, defined by run: what a region computes, element by element, over symbolic sizes.

A `Value` is a tensor: for each dimension the axes whose indices (row-major) make up its index, and one
scalar expression over those axes. Views only regroup axes or rewrite indices, so they cost nothing.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch

from passagent.expert.lower.symbolic_sizes import ONE, Scalar, Size, Sizes, Unsupported, times

HALF = {torch.float16, torch.bfloat16}
"""Stored in 16 bits, computed in float32; both are `half` in an expression, so one kernel serves the two."""

HALVES = {"half", "float16", "bfloat16"}
"""Names of 16-bit types: the one that the call's inputs have, and those that a literal names."""

FLOATING = {*HALVES, "float32", "float64"}
COMPUTE = {**dict.fromkeys(HALVES, "float32"), "float32": "float32", "float64": "float64", "bool": "bool"}
"""The type that arithmetic on a dtype is done in; integers in int64."""
INTEGERS = {"int64", "int32", "int16", "int8", "uint8"}


def dtype_name(dtype: torch.dtype) -> str:
    """`float16`, `float32`, `int64`, `bool`, ... Raises Unsupported for complex and quantised types."""
    name = str(dtype).removeprefix("torch.")
    if name in {*COMPUTE, *INTEGERS} - {"half"}:
        return name
    raise Unsupported("dtype", name)


def compute_type(dtype: str) -> str:
    return COMPUTE.get(dtype, "int64")


def holds(dtype: str, number: float) -> bool:
    """Tell whether elements of a dtype, `half` being either, hold a number exactly."""
    stored = [torch.tensor(number).to(d) for d in (HALF if dtype in HALVES else [getattr(torch, dtype)])]
    return math.isnan(number) or all(value.item() == number for value in stored)


COMPARISONS = {"eq", "ne", "lt", "le", "gt", "ge", "and", "or", "not", "isnan"}
Number = int | float | bool | Size | Scalar


@dataclass(eq=False)
class Axis:
    """A loop index 0 <= i < size. `definition` holds what it became once it was split, joined or dropped."""

    number: int
    size: Size
    definition: Expr | None = None


def _operator(op: str, is_swapped: bool = False) -> Callable[..., Any]:
    return lambda *args: apply(op, *(reversed(args) if is_swapped else args))


@dataclass(frozen=True, eq=False)
class Expr:
    """A scalar expression. Interned by Trace: equal expressions are the same object.

    kind: const (data: number), size (data: text), param (data: name), axis (data: Axis),
    load (data: input number; args: an index for each dimension), op (data: name),
    reduce (data: (name, axes); args: the body).

    Python's operators make further ones; a number beside an expression takes its dtype. Between integers of
    64 bits they are arithmetic on indices, whose constants are computed at once.
    """

    kind: str
    data: Any
    args: tuple[Expr, ...]
    dtype: str
    axes: frozenset[Axis]
    """Free axes."""
    every: frozenset[Axis]
    """Free and bound axes."""
    trace: Trace = field(repr=False)

    __add__, __radd__ = _operator("index_add"), _operator("index_add", is_swapped=True)
    __mul__, __rmul__ = _operator("index_mul"), _operator("index_mul", is_swapped=True)
    __sub__, __rsub__ = _operator("index_sub"), _operator("index_sub", is_swapped=True)
    __truediv__, __rtruediv__ = _operator("div"), _operator("div", is_swapped=True)
    __floordiv__, __mod__ = _operator("index_div"), _operator("index_mod")
    __lt__, __le__, __gt__, __ge__ = (_operator(op) for op in ("lt", "le", "gt", "ge"))
    __and__, __or__, __neg__, __abs__ = (_operator(op) for op in ("and", "or", "neg", "abs"))

    def cast(self, dtype: str) -> Expr:
        """The value in another dtype."""
        if self.dtype == dtype:
            return self
        if self.kind == "const" and dtype in {"float32", "int64"}:
            return self.trace.const(float(self.data) if dtype == "float32" else int(self.data), dtype)
        return self.trace.op("cast", [self], dtype)

    def wide(self) -> Expr:
        """A stored element in the type that is computed with."""
        return self.cast(compute_type(self.dtype))

    def stored(self, dtype: str, exact: bool = False) -> Expr:
        """The value as eager stores it: rounded to `dtype` unless it is `exact` there."""
        if exact and dtype in HALVES and self.dtype == "float32":
            return self.trace.op("as_half", [self], dtype)
        return self.cast(dtype)

    def through(self, dtype: str) -> Expr:
        """The value that an element of `dtype` has, in the type that is computed with."""
        compute, short = compute_type(dtype), {*HALVES, "uint8", "int8"}
        exact = self.dtype in {dtype, "bool"} or (dtype in HALVES and self.dtype in short)
        exact = exact or (self.kind == "const" and holds(dtype, self.data))
        expr = self.cast(compute)
        return expr if exact or dtype == compute else expr.stored(dtype).wide()


def apply(op: str, *args: Any) -> Expr:
    """An operation on expressions and numbers of one compute type; one at least is an expression."""
    chosen = args[1:] if op == "where" else args  # a choice has the type of what is chosen
    first = next(a for a in chosen if isinstance(a, Expr))
    exprs = [a if isinstance(a, Expr) else first.trace.number(a, first.dtype) for a in args]
    if op in _FOLDED:
        if all(e.dtype == "int64" for e in exprs):
            return _FOLDED[op](*exprs)
        op = op.removeprefix("index_")
    return first.trace.op(op, exprs, "bool" if op in COMPARISONS else exprs[-1].dtype)


def _index_sum(a: Expr, b: Expr) -> Expr:
    if a.kind == b.kind == "const":
        return a.trace.integer(a.data + b.data)
    for x, y in ((b, a), (a, b)):
        if x.kind == "const" and x.data == 0:
            return y
    return a.trace.op("index_add", [a, b], "int64")


def _index_product(a: Expr, b: Expr) -> Expr:
    for x, y in ((a, b), (b, a)):
        if x.kind == "const" and x.data in (0, 1):
            return x if x.data == 0 else y
    if a.kind == b.kind == "const":
        return a.trace.integer(a.data * b.data)
    return a.trace.op("index_mul", [a, b], "int64")


_FOLDED: dict[str, Callable[[Expr, Expr], Expr]] = {
    "index_add": _index_sum,
    "index_mul": _index_product,
    "index_sub": lambda a, b: _index_sum(a, _index_product(a.trace.integer(-1), b)),
}


@dataclass
class Value:
    """A tensor: for each dimension the axes that make up its index, and an element."""

    dims: list[tuple[Axis, ...]]
    expr: Expr

    @property
    def dtype(self) -> str:
        return self.expr.dtype

    @property
    def trace(self) -> Trace:
        return self.expr.trace

    @property
    def shape(self) -> list[Size]:
        return [self.trace.size_of(dim) for dim in self.dims]

    def refresh(self) -> Value:
        """The value over present axes."""
        return Value([tuple(self.trace.axes_of(d)) for d in self.dims], self.trace.resolve(self.expr))

    def cast(self, dtype: str) -> Value:
        return Value(self.dims, self.expr.cast(dtype))


@dataclass(frozen=True)
class Cat:
    """A concatenation: the element that `expr` chooses at `axis` is that of one of `pieces`."""

    axis: Axis
    expr: Expr
    pieces: tuple[tuple[Axis, Expr, Size], ...]
    """(index within the piece, its element, where it starts)."""


class Trace(Sizes):
    """Makes expressions and axes, and remembers guards."""

    def __init__(self, target: str) -> None:
        super().__init__()
        self.target = target
        """cpu or cuda: some operators round at other places there."""
        self._table: dict[tuple[Any, ...], Expr] = {}
        self._numbers = itertools.count()
        self.inputs: list[list[Size]] = []
        """For each input the sizes of its dimensions as they lie in memory, outermost first."""
        self.dtypes: list[str] = []
        """The inputs' dtypes."""
        self.library: dict[int, Any] = {}
        """The operators of inputs that the library computes first (lower/windows.py)."""
        self.cats: list[Cat] = []
        self.outside: dict[Expr, None] = {}  # cpu: 1 where an index is out of range, checked before all else
        self.decisive = False
        """True if something rounds or chooses by the results."""
        self._together: list[frozenset[Axis]] = []

    # expressions

    def make(self, kind: str, data: Any, args: tuple[Expr, ...], dtype: str) -> Expr:
        key = (kind, repr(data) if isinstance(data, float) else data, type(data), (*map(id, args),), dtype)
        expr = self._table.get(key)
        if expr is None:
            axes = frozenset().union(*[a.axes for a in args])
            every = frozenset().union(*[a.every for a in args])
            if kind == "axis":
                axes = every = frozenset([data])
            elif kind == "reduce":
                axes, every = axes - set(data[1]), every | set(data[1])
            expr = self._table[key] = Expr(kind, data, args, dtype, axes, every, self)
            if kind in {"load", "reduce"} and len(every) > 1:
                self._together.append(every)
        return expr

    def input(self, shape: Iterable[int], dtype: str, order: tuple[int, ...] = ()) -> Value:
        """The next input, dense in that order of dimensions; its sizes are `s<number>[<dimension>]`."""
        axes = [self.axis(self.size(n, f"s{len(self.inputs)}[{k}]")) for k, n in enumerate(shape)]
        return Value([(a,) for a in axes], self.read([axes[d] for d in order or range(len(axes))], dtype))

    def read(self, axes: list[Axis], dtype: str) -> Expr:
        """An element of one more input, which lies in memory in the order of its axes."""
        self.inputs.append([axis.size for axis in axes])
        self.dtypes.append(dtype)
        return self.make("load", len(self.inputs) - 1, tuple(map(self.index, axes)), dtype)

    def const(self, value: float | int | bool, dtype: str) -> Expr:
        return self.make("const", value, (), dtype)

    def integer(self, value: int | Size) -> Expr:
        """A constant or symbolic integer index."""
        if isinstance(value, Size) and not value.constant:
            return self.make("size", str(value), (), "int64")
        return self.const(int(value.text) if isinstance(value, Size) else value, "int64")

    def number(self, value: Number, dtype: str) -> Expr:
        """A scalar as an expression of a compute type."""
        if isinstance(value, Size):
            return self.integer(value).cast(dtype)
        if isinstance(value, Scalar):
            return self.make("param", value.name, (), "float64").cast(dtype)
        kind = {"float32": float, "float64": float, "bool": bool}.get(dtype, int)
        return self.const(kind(value), dtype)

    def op(self, name: str, args: Iterable[Expr], dtype: str) -> Expr:
        return self.make("op", name, tuple(args), dtype)

    def index(self, axis: Axis) -> Expr:
        """The index of an axis, whatever it has become."""
        if axis.definition is not None:
            return self.resolve(axis.definition)
        return self.make("axis", axis, (), "int64")

    # axes

    def axis(self, size: Size) -> Axis:
        return Axis(next(self._numbers), size)

    def axes_of(self, dim: tuple[Axis, ...]) -> list[Axis]:
        """The present axes of a dimension: those that were split are followed, dropped ones left out."""
        # in a definition such as a * n + b the outer axis stands first
        return [e.data for axis in dim for e in parts(self.index(axis)) if e.kind == "axis"]

    def size_of(self, dim: Iterable[Axis]) -> Size:
        return times(a.size for a in dim)

    def split(self, axis: Axis, inner: Size) -> tuple[Axis, Axis]:
        """Split an axis everywhere into (outer, inner)."""
        first, second = self.axis(axis.size // inner), self.axis(inner)
        self.products.setdefault(str(axis.size), (str(first.size), str(inner)))
        axis.definition = self.index(first) * self.integer(inner) + self.index(second)
        self._together.append(frozenset([first, second]))
        return first, second

    def drop(self, axis: Axis) -> None:
        """An axis that has one index only."""
        self.equal(axis.size, ONE)
        axis.definition = self.integer(0)

    def join(self, a: Axis, b: Axis) -> bool:
        """Make `b` the same index as `a` everywhere; False if some expression tells them apart."""
        if a is b:
            return True
        for group in self._together:
            if {a, b} <= set().union(*(self.index(axis).axes for axis in group)):
                return False
        self.equal(a.size, b.size)
        b.definition = self.index(a)
        return True

    # rewriting

    def resolve(self, expr: Expr) -> Expr:
        """The expression over present axes only."""
        if all(a.definition is None for a in expr.every):
            return expr
        return self._rewrite(expr, {}, {})

    def substitute(self, expr: Expr, new: dict[Axis, Expr]) -> Expr:
        """Replace free (present) axes; bound axes that would capture are renamed."""
        return self._rewrite(self.resolve(expr), new, {})

    def _rewrite(self, expr: Expr, new: dict[Axis, Expr], rewritten: dict[Expr, Expr]) -> Expr:
        if expr in rewritten:
            return rewritten[expr]
        if expr.kind == "axis":
            result = new[expr.data] if expr.data in new else self.index(expr.data)
        elif expr.kind == "reduce":
            result = self._rewrite_reduce(expr, new, rewritten)
        else:
            args = tuple(self._rewrite(a, new, rewritten) for a in expr.args)
            folded = _FOLDED.get(expr.data) if expr.kind == "op" else None
            result = folded(*args) if folded else self.make(expr.kind, expr.data, args, expr.dtype)
        rewritten[expr] = result
        return result

    def _rewrite_reduce(self, expr: Expr, new: dict[Axis, Expr], rewritten: dict[Expr, Expr]) -> Expr:
        name, bound = expr.data
        axes = self.axes_of(bound)
        hidden = any(a in new or any(a in e.axes for e in new.values()) for a in axes)
        start = {} if hidden else rewritten
        inside = {a: e for a, e in new.items() if a in expr.axes}
        captured = {a for e in inside.values() for a in e.axes}
        renamed = {a: self.axis(a.size) for a in axes if a in captured}
        inside.update({a: self.index(b) for a, b in renamed.items()})
        body = self._rewrite(expr.args[0], inside, dict(start))
        return self.make("reduce", (name, tuple(renamed.get(a, a) for a in axes)), (body,), expr.dtype)

    def replace(self, expr: Expr, new: dict[Expr, Expr], at: dict[Axis, Expr] | None = None) -> Expr:
        """`expr` with parts replaced by others, read at other indices of axes."""
        return self._rewrite(self.resolve(expr), at or {}, dict(new))


def parts(*exprs: Expr, whole: Callable[[Expr], bool] = lambda e: False) -> dict[Expr, None]:
    """Expressions and all that they are made of, once each, each before its own parts.

    What is `whole` is not taken apart.
    """
    visited: dict[Expr, None] = {}

    def walk(e: Expr) -> None:
        if e not in visited:
            visited[e] = None
            for a in () if whole(e) else e.args:
                walk(a)

    for e in exprs:
        walk(e)
    return visited
