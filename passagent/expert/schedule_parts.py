"""What a schedule is made of: addresses, stores, stages of loops, groups of stages."""

from __future__ import annotations

from dataclasses import dataclass, field

from passagent.expert.expressions import Axis, Expr, Size

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
"""What a stage computes: a store, or a reduction."""


@dataclass
class Stage:
    loops: list[Axis]
    """Outer to inner."""
    items: list[Item]


@dataclass
class Group:
    rows: list[Axis]
    tile: Axis | None
    """The innermost axis where it is split over rows in tiles, so that rows hold a run of it."""
    stages: list[Stage]
