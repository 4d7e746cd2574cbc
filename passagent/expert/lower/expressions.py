"""Tensor expressions, defined by run: what a region computes, element by element, over symbolic sizes.

A `Value` is a tensor: for each dimension the axes whose indices (row-major) make up its index, and one
scalar expression over those axes. Views only regroup axes or rewrite indices, so they cost nothing; sizes
are texts that the generated wrapper evaluates on the host. Each carries the value that it had in the example
(`hint`), and every equality that the lowering relied on is kept as a guard.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


class Unsupported(Exception):
    """An operator that cannot be lowered: its name and why."""

    def __init__(self, op: str, reason: str) -> None:
        super().__init__(f"{op}: {reason}")
        self.op, self.reason = op, reason


@dataclass(frozen=True)
class Size:
    """A size: its value in the example and the host expression that gives it (a number if it is constant)."""

    hint: int
    text: str

    @property
    def constant(self) -> bool:
        return self.text.lstrip("-").isdigit()


def fixed(value: int) -> Size:
    """A constant size."""
    return Size(value, str(value))


ONE = fixed(1)
ALONG = {"reduce", "scan"}  # kinds whose elements are computed of many along an axis


@dataclass(eq=False)
class Axis:
    """A loop index 0 <= i < size. `definition` holds what it became once it was split, joined or dropped."""

    number: int
    size: Size
    definition: Expr | None = None

    def __repr__(self) -> str:
        return f"i{self.number}:{self.size.text}"


@dataclass(frozen=True, eq=False)
class Expr:
    """A scalar expression. Interned by Trace: equal expressions are the same object.

    kind: const (data: number), size (data: text), param (data: name), axis (data: Axis),
    load (data: input number; args: an index for each dimension), op (data: name),
    reduce (data: (name, axes); args: the body),
    scan (data: (name, (axis,)); args: the body, and the last index along the axis that takes part).
    """

    kind: str
    data: Any
    args: tuple[Expr, ...]
    dtype: str
    axes: frozenset[Axis]
    """Free axes."""
    every: frozenset[Axis]
    """Free and bound axes."""


@dataclass
class Value:
    """A tensor: for each dimension the axes that make up its index, and an element."""

    dims: list[tuple[Axis, ...]]
    expr: Expr

    @property
    def dtype(self) -> str:
        return self.expr.dtype


@dataclass(frozen=True)
class Cat:
    """A concatenation: the element that `expr` chooses at `axis` is that of one of `pieces`."""

    axis: Axis
    expr: Expr
    pieces: tuple[tuple[Axis, Expr, Size], ...]
    """(index within the piece, its element, where it starts)."""


class Trace:
    """Makes expressions and axes, and remembers guards."""

    def __init__(self) -> None:
        self._table: dict[tuple[Any, ...], Expr] = {}
        self._numbers = itertools.count()
        self._same: dict[str, str] = {}
        self.hints: dict[str, int] = {}
        self.products: dict[str, tuple[str, ...]] = {}
        """Texts of sizes that are a product of others."""
        self.guards: dict[str, None] = {}
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
            elif kind == "scan":
                axes = (args[0].axes - set(data[1])) | args[1].axes
            expr = self._table[key] = Expr(kind, data, args, dtype, axes, every)
            if kind in {"load", *ALONG} and len(every) > 1:
                self._together.append(every)
        return expr

    def input(self, shape: Iterable[int], dtype: str, order: tuple[int, ...] = ()) -> Value:
        """The next input, dense in that order of dimensions; its sizes are `s<number>[<dimension>]`."""
        number = len(self.inputs)
        sizes = [Size(n, f"s{number}[{k}]") for k, n in enumerate(shape)]
        axes = [self.axis(s) for s in sizes]
        lying = order or range(len(sizes))
        self.inputs.append([sizes[d] for d in lying])
        self.dtypes.append(dtype)
        indices = tuple(self.index(axes[d]) for d in lying)
        return Value([(a,) for a in axes], self.make("load", number, indices, dtype))

    def const(self, value: float | int | bool, dtype: str) -> Expr:
        return self.make("const", value, (), dtype)

    def integer(self, value: int | Size) -> Expr:
        """A constant or symbolic integer index."""
        if isinstance(value, int):
            return self.const(value, "int64")
        if value.constant:
            return self.const(int(value.text), "int64")
        return self.make("size", self.text(value), (), "int64")

    def op(self, name: str, args: Iterable[Expr], dtype: str) -> Expr:
        return self.make("op", name, tuple(args), dtype)

    def cast(self, expr: Expr, dtype: str) -> Expr:
        if expr.dtype == dtype:
            return expr
        if expr.kind == "const" and dtype in {"float32", "int64"}:
            return self.const(float(expr.data) if dtype == "float32" else int(expr.data), dtype)
        return self.op("cast", [expr], dtype)

    def add(self, a: Expr, b: Expr) -> Expr:
        """Sum of two indices."""
        if a.kind == b.kind == "const":
            return self.integer(a.data + b.data)
        if b.kind == "const" and b.data == 0:
            return a
        if a.kind == "const" and a.data == 0:
            return b
        return self.op("index_add", [a, b], "int64")

    def mul(self, a: Expr, b: Expr) -> Expr:
        """Product of two indices."""
        for x, y in ((a, b), (b, a)):
            if x.kind == "const" and x.data in (0, 1):
                return x if x.data == 0 else y
        if a.kind == b.kind == "const":
            return self.integer(a.data * b.data)
        return self.op("index_mul", [a, b], "int64")

    def index(self, axis: Axis) -> Expr:
        """The index of an axis, whatever it has become."""
        if axis.definition is not None:
            return self.resolve(axis.definition)
        return self.make("axis", axis, (), "int64")

    # sizes

    def text(self, size: Size) -> str:
        """The canonical text among the texts that guards made equal."""
        text = size.text
        while text in self._same:
            text = self._same[text]
        self.hints[text] = size.hint
        return text

    def equal(self, a: Size, b: Size) -> None:
        """Rely on a == b. Raises Unsupported if it does not even hold in the example."""
        if a.hint != b.hint:
            raise Unsupported("shape", f"{a.text} = {a.hint} and {b.text} = {b.hint} do not fit")
        x, y = self.text(a), self.text(b)
        if x != y:
            self.guards[f"{x} == {y}"] = None
            keep, drop = (y, x) if self._plainness(y) < self._plainness(x) else (x, y)
            self._same[drop] = keep

    def _plainness(self, text: str) -> tuple[int, int]:
        kind = 0 if text.isdigit() else 1 if text in self.products else 2
        return kind, len(text)

    def guard(self, condition: str) -> None:
        self.guards[condition] = None

    def plus(self, a: Size, b: Size) -> Size:
        """Sum of two sizes."""
        x, y = self.text(a), self.text(b)
        if a.constant and b.constant:
            return fixed(a.hint + b.hint)
        if x == "0" or y == "0":
            return b if x == "0" else a
        return Size(a.hint + b.hint, f"({x} - {y[1:]})" if y.startswith("-") else f"({x} + {y})")

    def minus(self, a: Size, b: Size) -> Size:
        """Difference of two sizes."""
        x, y = self.text(a), self.text(b)
        if x.isdigit() and y.isdigit():
            return fixed(a.hint - b.hint)
        return a if y == "0" else Size(a.hint - b.hint, f"({x} - {y})")

    def times(self, sizes: Iterable[Size]) -> Size:
        """Product of sizes."""
        hint, constant, texts = 1, 1, []
        for size in sizes:
            hint *= size.hint
            text = self.text(size)
            if text.isdigit():
                constant *= int(text)
            else:
                texts.append(text)
        if constant != 1 or not texts:
            texts.append(str(constant))
        if len(texts) == 1:
            return Size(hint, texts[0])
        result = Size(hint, f"({' * '.join(texts)})")
        self.products[result.text] = tuple(texts)
        return result

    def divide(self, a: Size, b: Size) -> Size:
        """a / b, relying on divisibility."""
        if a.hint % max(b.hint, 1):
            raise Unsupported("shape", f"{a.hint} is no multiple of {b.hint}")
        x, y = self.text(a), self.text(b)
        if x.isdigit() and y.isdigit():
            return fixed(int(x) // int(y))
        if y == "1":
            return a
        self.guard(f"{x} % {y} == 0")
        return Size(a.hint // b.hint, f"({x} // {y})")

    # axes

    def axis(self, size: Size) -> Axis:
        return Axis(next(self._numbers), size)

    def axes_of(self, dim: tuple[Axis, ...]) -> list[Axis]:
        """The present axes of a dimension: those that were split are followed, dropped ones left out."""
        result: list[Axis] = []
        for axis in dim:
            if axis.definition is None:
                result.append(axis)
            else:
                result += sorted(self.index(axis).axes, key=_row_major(self.index(axis)))
        return result

    def size_of(self, dim: tuple[Axis, ...]) -> Size:
        return self.times(a.size for a in dim)

    def split(self, axis: Axis, inner: Size) -> tuple[Axis, Axis]:
        """Split an axis everywhere into (outer, inner)."""
        first, second = self.axis(self.divide(axis.size, inner)), self.axis(inner)
        self.products.setdefault(self.text(axis.size), (self.text(first.size), self.text(inner)))
        axis.definition = self.add(self.mul(self.index(first), self.integer(inner)), self.index(second))
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
            now: set[Axis] = set()
            for axis in group:
                now |= self.index(axis).axes
            if a in now and b in now:
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
            if expr.kind == "op" and expr.data == "index_add":
                result = self.add(*args)
            elif expr.kind == "op" and expr.data == "index_mul":
                result = self.mul(*args)
            else:
                result = self.make(expr.kind, expr.data, args, expr.dtype)
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

    def refresh(self, value: Value) -> Value:
        """The value over present axes."""
        return Value([tuple(self.axes_of(d)) for d in value.dims], self.resolve(value.expr))

    def shape(self, value: Value) -> list[Size]:
        return [self.size_of(d) for d in value.dims]


def _row_major(index: Expr) -> Any:
    """Order of axes in a definition such as a * n + b: as they are written."""
    order: list[Axis] = []

    def walk(e: Expr) -> None:
        if e.kind == "axis":
            order.append(e.data)
        for a in e.args:
            walk(a)

    walk(index)
    return order.index


def parts(*exprs: Expr) -> dict[Expr, None]:
    """Expressions and all that they are made of, once each, each before its own parts."""
    visited: dict[Expr, None] = {}

    def walk(e: Expr) -> None:
        if e not in visited:
            visited[e] = None
            for a in e.args:
                walk(a)

    for e in exprs:
        walk(e)
    return visited
