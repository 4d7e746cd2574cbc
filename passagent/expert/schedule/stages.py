"""The parts of a schedule: addresses, stores, stages of loops, groups of stages."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property

from passagent.expert.lower.expressions import Axis, Expr, Trace, parts
from passagent.expert.lower.symbolic_sizes import Size

HELD = 16384
"""cuda: elements of a block that is reduced along its height, at most."""
NARROW = 8
"""cuda: rows that such a block holds at least: of 16-bit elements half a sector of memory."""

Mono = tuple[int, tuple[str, ...]]
"""A product of an integer and size texts."""


@dataclass
class Address:
    """sum(axis * coefficient) + sum(expression * coefficient), in elements."""

    terms: dict[Axis, Mono] = field(default_factory=dict)
    rest: list[tuple[Expr | None, Mono]] = field(default_factory=list)


@dataclass
class Store:
    """Element `index` (one expression a dimension of `sizes`) of output `out` is `expr`."""

    out: int
    index: list[Expr]
    sizes: list[Size]
    expr: Expr

    @property
    def axes(self) -> frozenset[Axis]:
        return self.expr.axes.union(*[i.axes for i in self.index])


Item = Store | Expr
"""An item of a stage: a store, or a reduction."""


@dataclass
class Stage:
    loops: list[Axis]
    """Outer to inner."""
    items: list[Item]

    @property
    def stores(self) -> list[Store]:
        return [item for item in self.items if isinstance(item, Store)]

    @property
    def reductions(self) -> list[Expr]:
        return [item for item in self.items if isinstance(item, Expr)]

    @property
    def bodies(self) -> list[Expr]:
        """All that is computed of each element: what is stored, and what is reduced."""
        return [item.expr if isinstance(item, Store) else item.args[0] for item in self.items]

    @cached_property
    def values(self) -> set[Expr]:
        """All that its loops compute."""
        inside = parts(*self.bodies, whole=lambda e: e.kind == "reduce")
        return {e for e in inside if e.kind != "reduce"}


@dataclass
class Group:
    rows: list[Axis]
    tile: Axis | None
    """The innermost axis where it is split over rows in tiles, so that rows hold a run of it."""
    stages: list[Stage]

    @property
    def stores(self) -> list[Store]:
        return [store for stage in self.stages for store in stage.stores]

    @property
    def reductions(self) -> list[Expr]:
        return [reduction for stage in self.stages for reduction in stage.reductions]

    @property
    def parts(self) -> dict[Expr, None]:
        """All expressions, those of the stores' indices, too."""
        items = [item for stage in self.stages for item in stage.items]
        return parts(*(e for i in items for e in ([i.expr, *i.index] if isinstance(i, Store) else [i])))

    @property
    def loads(self) -> list[Expr]:
        return [e for e in self.parts if e.kind == "load"]


def holds(expr: Expr, target: Expr, axis: Axis) -> bool:
    """Tell whether `target` is a part of `expr` at which `axis` is free."""
    if expr is target:
        return True
    if expr.kind == "reduce" and axis in expr.data[1]:
        return False
    return any(axis in a.axes and holds(a, target, axis) for a in expr.args)


def reduced(expr: Expr, target: Expr) -> bool:
    """Tell whether a reduction in `expr` reads `target`."""
    if expr is target:
        return False
    if expr.kind == "reduce":
        return target in parts(expr)
    return any(reduced(a, target) for a in expr.args)


def lying_across(rows: Iterable[Axis], bound: frozenset[Axis], reads: list[dict[Axis, int]]) -> Axis | None:
    """The row axis along which a large input lies whose rows are reduced whole, if a block holds several.

    `reads`: how far a step along each axis goes in memory. One row alone reads each of its elements from a
    sector of its own. The order of the axes tells, unless as much lies along the rows: what is added to a
    convolution's patches, say.
    """
    if len(bound) != 1 or volume(bound) > HELD // NARROW:
        return None
    most = max(map(volume, reads), default=0)
    large = [steps for steps in reads if 2 * volume(steps) >= most and bound <= set(steps)]
    across = (a for a in rows if a.size.hint >= 2 * NARROW and any(steps.get(a) == 1 for steps in large))
    return next(across, None)


def volume(axes: Iterable[Axis]) -> int:
    """How many indices the axes have together, in the example."""
    return math.prod(axis.size.hint for axis in axes)


def reductions_in(*exprs: Expr) -> dict[Expr, None]:
    """Reductions that expressions hold, those that others need first."""
    ordered, visited = dict[Expr, None](), set[Expr]()

    def walk(e: Expr) -> None:
        if e not in visited:
            visited.add(e)
            for a in e.args:
                walk(a)
            if e.kind == "reduce":
                ordered[e] = None

    for e in exprs:
        walk(e)
    return ordered


def settled(trace: Trace, store: Store) -> Store:
    """The store without axes of one index."""
    units = {a: trace.integer(0) for a in store.axes if str(a.size) == "1"}
    index = [trace.substitute(i, units) for i in store.index]
    return replace(store, index=index, expr=trace.substitute(store.expr, units))
