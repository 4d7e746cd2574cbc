"""Running sums and products along an axis.

An operator's scan runs over an axis of its own and is read at an index: views rewrite that index alone. A
schedule lets it run along the axis at which it is read, from the first element on or from the last.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from passagent.expert.expressions import ALONG, Axis, Expr, Trace, Unsupported, fixed, parts
from passagent.expert.schedule_parts import Store, without_units


def bound_along(exprs: Iterable[Expr]) -> list[Axis]:
    """Axes along which something is reduced or scanned."""
    return [axis for e in parts(*exprs) if e.kind in ALONG for axis in e.data[1]]


def settled(trace: Trace, store: Store) -> Store:
    """The store without axes of one index, and its scans along the axes that they are read at.

    Raises Unsupported where there is no such axis.
    """
    store = without_units(trace, store)
    return replace(store, index=[_placed(trace, i) for i in store.index], expr=_placed(trace, store.expr))


def _placed(trace: Trace, expr: Expr) -> Expr:
    while True:
        scan = next((e for e in parts(expr) if e.kind == "scan" and e.args[1] is not _own(trace, e)), None)
        if scan is None:
            return expr
        expr = trace.replace(expr, {scan: _along(trace, scan)})


def _own(trace: Trace, scan: Expr) -> Expr:
    (axis,) = scan.data[1]
    return trace.index(axis)


def _along(trace: Trace, scan: Expr) -> Expr:
    (name, (axis,)), (body, index) = scan.data, scan.args
    if trace.text(axis.size) == "1":
        return trace.substitute(body, {axis: trace.integer(0)})
    free = next((a for a in index.axes if trace.text(a.size) == trace.text(axis.size)), axis)
    here, back = trace.index(free), _from_the_end(trace, free, trace.index(free))
    if index is here:
        along = trace.substitute(body, {axis: here})
    elif index is back:
        name = f"{name}_back"
        along = trace.substitute(body, {axis: back})
        along = trace.replace(along, {_from_the_end(trace, free, back): here})
    else:
        raise Unsupported(name, "is read elsewhere than it is computed")
    return trace.make("scan", (name, (free,)), (along, here), scan.dtype)


def _from_the_end(trace: Trace, axis: Axis, index: Expr) -> Expr:
    """n - 1 - index, as `flip` writes it."""
    last = trace.integer(trace.plus(axis.size, fixed(-1)))
    return trace.add(last, trace.mul(trace.integer(-1), index))
