"""How the outputs of a region are computed: groups of loops over common rows, in stages.

A group runs over its rows (`rows`: axes that are never reduced) in parallel. Inside a row its stages follow
one another; each is one loop nest that computes reductions, stores, or both, and later stages use the
reductions of earlier ones.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import permutations
from typing import Any

from passagent.expert.lower.call import position
from passagent.expert.lower.expressions import Axis, Expr, Trace, Value, parts
from passagent.expert.lower.symbolic_sizes import Size, Unsupported
from passagent.expert.schedule.stages import (
    Address,
    Group,
    Item,
    Mono,
    Stage,
    Store,
    holds,
    lying_across,
    reduced,
    reductions_in,
    settled,
    volume,
)

LONGEST_TURNED = 16384
"""cpu: elements of a row, at most, that is reduced along what lies apart in memory."""


class Schedule:
    """Outputs of a trace as groups; addresses and merged axes are looked up here."""

    volume = staticmethod(volume)

    def __init__(
        self, trace: Trace, outputs: list[Value], target: str = "cpu", others: Sequence[Expr] = ()
    ) -> None:
        """Schedule the stores of the outputs; what `others` read has its addresses, too."""
        self.trace, self.target = trace, target
        self.merged: dict[Axis, Axis] = {}
        self.addresses: dict[Any, Address] = {}
        self.bare: set[Axis] = set()
        self._seen: set[Expr] = set()
        self.stores = [settled(trace, store) for store in self._stores(outputs)]
        for store in self.stores:
            self.addresses[id(store)] = self.linear(store.index, store.sizes)
            self._visit(store.expr)
        self.outside = list(map(trace.resolve, trace.outside))
        for e in [*self.outside, *others]:
            self._visit(e)
        self._merge()
        self.order = self._order()

    @cached_property
    def groups(self) -> list[Group]:
        """The stores that are written by one group of loops each."""
        together: list[list[Store]] = []
        for store in self.stores:
            fitting = next((stores for stores in together if self._together(stores, store)), None)
            if fitting is None:
                together.append(fitting := [])
            fitting.append(store)
        return list(map(self._group, together))

    # addresses

    def _stores(self, outputs: list[Value]) -> list[Store]:
        values, stores = [output.refresh() for output in outputs], list[Store]()
        for number, value in enumerate(values):
            index = [position(self.trace, d) for d in value.dims]
            stores += self._split(Store(number, index, value.shape, value.expr), [v.expr for v in values])
        return stores

    def _split(self, store: Store, results: list[Expr]) -> list[Store]:
        """One store for each tensor of a cat that the value holds: no element is chosen in the loops then."""
        t = self.trace
        for cat in t.cats:
            axis, chosen = t.index(cat.axis), t.resolve(cat.expr)
            if axis.kind != "axis" or axis.data not in store.axes or not holds(store.expr, chosen, axis.data):
                continue
            if self.target == "cuda" and any(reduced(result, chosen) for result in results):
                continue  # the rows that are reduced are held whole, and so are they stored
            stores = []
            for piece_axis, part, start in cat.pieces:
                at = t.index(piece_axis) + start
                new = t.replace(store.expr, {chosen: t.resolve(part)}, {axis.data: at})
                index = [t.substitute(i, {axis.data: at}) for i in store.index]
                stores += self._split(Store(store.out, index, store.sizes, new), results)
            return stores
        for cat in t.cats:
            if self.target == "cpu" and t.resolve(cat.expr) in parts(store.expr):
                raise Unsupported("cat", "its elements would be chosen one by one in the loops")
        return [store]

    def mono(self, size: Size) -> Mono:
        return self.atoms(str(size))

    def atoms(self, text: str, within: tuple[str, ...] = ()) -> Mono:
        text = self.trace.text(Size(self.trace.hints.get(text, 1), text))
        if text.lstrip("-").isdigit():
            return int(text), ()
        if text not in self.trace.products or text in within:
            return 1, (text,)
        result: Mono = (1, ())
        for part in self.trace.products[text]:
            result = self.times(result, self.atoms(part, (*within, text)))
        return result

    def times(self, a: Mono, b: Mono) -> Mono:
        return a[0] * b[0], tuple(sorted(a[1] + b[1]))

    def linear(self, index: list[Expr], sizes: list[Size]) -> Address:
        address = Address()
        stride: Mono = (1, ())
        for place, size in zip(reversed(index), reversed(sizes), strict=True):
            self._expand(address, place, stride)
            stride = self.times(stride, self.mono(size))
        self._put_together(address)
        for e, _ in address.rest:
            if e is not None:
                self._visit(e)
        return address

    def _put_together(self, address: Address) -> None:
        """p // n * n + p % n is p: what was split and is walked as one."""
        for rest, step in address.rest:
            if rest is None or rest.data != "index_mod":
                continue
            whole, n = rest.args
            divisor = self.times(step, self._factor(n)) if n.kind in {"const", "size"} else None
            for whole_steps in address.rest:
                e, stride = whole_steps
                if e is not None and e.data == "index_div" and e.args == rest.args and stride == divisor:
                    address.rest.remove(whole_steps)
                    address.rest.remove((rest, step))
                    self._expand(address, whole, step)
                    return self._put_together(address)

    def _expand(self, address: Address, e: Expr, factor: Mono) -> None:
        if e.kind == "axis":
            if e.data in address.terms:
                address.rest.append((e, factor))
            else:
                address.terms[e.data] = factor
        elif e.kind in {"const", "size"}:
            if e.data != 0:
                address.rest.append((None, self.times(factor, self._factor(e))))
        elif e.data == "index_add":
            for a in e.args:
                self._expand(address, a, factor)
        elif e.data == "index_mul" and any(a.kind in {"const", "size"} for a in e.args):
            a, n = e.args if e.args[1].kind in {"const", "size"} else reversed(e.args)
            self._expand(address, a, self.times(factor, self._factor(n)))
        else:
            address.rest.append((e, factor))

    def _factor(self, e: Expr) -> Mono:
        return (e.data, ()) if e.kind == "const" else self.atoms(e.data)

    def _visit(self, e: Expr) -> None:
        if e in self._seen:
            return
        self._seen.add(e)
        if e.kind == "axis":
            self.bare.add(e.data)
        elif e.kind == "load":
            self.addresses[e] = self.linear(list(e.args), self.trace.inputs[e.data])
        else:
            for a in e.args:
                self._visit(a)

    # axes

    def axes(self, axes: Iterable[Axis]) -> frozenset[Axis]:
        """Merged axes."""
        result = set()
        for axis in axes:
            now = axis
            while now in self.merged:
                now = self.merged[now]
            result.add(now)
        return frozenset(result)

    def _merge(self) -> None:
        """Join neighbouring axes that every address walks through as one."""
        live = {a for e in self._seen for a in e.every} | {a for s in self.stores for a in s.axes}
        reduces = [e for e in self._seen if e.kind == "reduce"]
        while True:
            now = sorted(self.axes(live), key=lambda a: a.number)
            pair = next((two for two in permutations(now, 2) if self._mergeable(*two, reduces)), None)
            if pair is None:
                return
            axis = self.trace.axis(pair[0].size * pair[1].size)
            self.merged |= dict.fromkeys(pair, axis)
            for terms in (address.terms for address in self.addresses.values()):
                if pair[1] in terms:
                    terms[axis] = terms.pop(pair[1])
                    del terms[pair[0]]

    def _mergeable(self, a: Axis, b: Axis, reduces: list[Expr]) -> bool:
        if a in self.bare or b in self.bare:
            return False
        inner, steps = self.mono(b.size), [(o.terms.get(a), o.terms.get(b)) for o in self.addresses.values()]
        if any(x != (None if y is None else self.times(y, inner)) for x, y in steps):
            return False
        sides = [(r.data[1], r.axes) for r in reduces]
        for along, across in sides:
            bound, free = self.axes(along), self.axes(across)
            if (a in bound) != (b in bound) or (a in free) != (b in free):
                return False
        return any(x is not None for x, _ in steps)

    def hint(self, mono: Mono) -> int:
        return mono[0] * math.prod(self.trace.hints.get(t, 1) for t in mono[1])

    def _order(self) -> list[Axis]:
        """All axes, outermost first: as the largest access walks memory, the others fitted in.

        Of equally large ones a read leads where something is reduced (rows are read again), else a store;
        what windows read counts as often as it is read.
        """
        reads_first = any(e.kind == "reduce" for e in self._seen)
        strides = {key: self._strides(key) for key in self.addresses}
        often = Counter(e.data for e, a in self.addresses.items() if isinstance(e, Expr) and a.rest)

        def rank(access: Any) -> tuple[int, bool]:
            is_read = isinstance(access, Expr)
            times = max(1, often[access.data]) if is_read else 1
            return -self.volume(strides[access]) * times, is_read != reads_first

        order: list[Axis] = []
        for access in sorted(strides, key=rank):
            walk = sorted(strides[access], key=lambda a: -strides[access][a])
            for place, axis in enumerate(walk):
                if axis not in order:
                    after = [a for a in walk[place + 1 :] if a in order]
                    order.insert(order.index(after[0]) if after else len(order), axis)
        rest = self.axes(a for e in self._seen for a in e.every) - set(order)
        return sorted(rest, key=lambda a: a.number) + order

    def _strides(self, access: Any) -> dict[Axis, int]:
        """How far a step along each axis goes, those of computed indices included; of a store by its id."""
        address = self.addresses[access]
        strides = {a: self.hint(mono) for a, mono in address.terms.items()}
        for e, mono in address.rest:
            # a set's order is another one in every process
            for axis in sorted(self.axes(e.axes if e is not None else ()), key=lambda a: a.number):
                strides.setdefault(axis, self.hint(mono))
        return strides

    def sorted(self, axes: Iterable[Axis]) -> list[Axis]:
        return sorted(axes, key=self.order.index)

    # groups and stages

    def store_axes(self, store: Store) -> frozenset[Axis]:
        return self.axes(store.axes)

    def _bound(self, stores: list[Store]) -> frozenset[Axis]:
        """Axes along which something is reduced."""
        along = [e for e in parts(*(s.expr for s in stores)) if e.kind == "reduce"]
        return self.axes(axis for e in along for axis in e.data[1])

    def _rows(self, stores: list[Store]) -> frozenset[Axis]:
        return frozenset.intersection(*map(self.store_axes, stores)) - self._bound(stores)

    def _leaves(self, stores: list[Store]) -> set[Any]:
        """Inputs read and reductions made."""
        return {e.data for e in parts(*(s.expr for s in stores)) if e.kind == "load" and e.axes}

    def _together(self, group: list[Store], store: Store) -> bool:
        a, b, both = self._rows(group), self._rows([store]), self._rows([*group, store])
        if not self._leaves(group) & self._leaves([store]):
            return False
        if both not in (a, b):
            return self.target == "cpu" and self.volume(both) >= 16
        # On a GPU rows run side by side; a program has one run of lanes beside them, no loop of stores.
        rests = frozenset().union(*(self.store_axes(s) - both for s in [*group, store]))
        # Axes of a store outside the common rows must be looped over once, not stored again and again.
        once = all(self.store_axes(s) >= both for s in [*group, store])
        return once and (self.target == "cpu" or len(rests) <= 1)

    def _group(self, stores: list[Store]) -> Group:
        bound = self._bound(stores)
        rows = self.sorted(self._rows(stores))
        reduces = reductions_in(*(s.expr for s in stores))
        used = self.axes(a for r in reduces for a in r.args[0].every).union(*map(self.store_axes, stores))
        walked = self.sorted(used)
        tile = walked[-1] if walked and walked[-1] in rows else None
        if tile is not None and self.target == "cpu":
            unit = {a for s in stores for a, step in self.addresses[id(s)].terms.items() if step == (1, ())}
            if unit & bound and self.volume(bound) <= LONGEST_TURNED:
                tile = None  # rows run along what is reduced; what lies across is turned (cpp_text.py)
        if tile is None and self.target == "cuda" and used - set(rows) == bound:
            tile = lying_across(rows, bound, [self._strides(e) for e in parts(*reduces) if e.kind == "load"])
        rows = self._without_waste(rows, tile, reduces, stores)
        tile = tile if tile in rows else None
        if tile is not None:
            rows.remove(tile)
        if not bound and tile is not None and self.target == "cpu":
            # Short innermost axes: take more of them into the row.
            inner = tile.size.hint
            while rows and inner < 64:
                inner *= rows.pop().size.hint
                tile = None
        return Group(rows, tile, self._stages(stores, reduces, rows))

    def _without_waste(
        self, rows: list[Axis], tile: Axis | None, reduces: dict[Expr, None], stores: list[Store]
    ) -> list[Axis]:
        """Drop rows for which a reduction that does not depend on them would be made again too often."""
        work = {r: self.volume(self.axes(r.args[0].axes)) for r in reduces}
        most = max([*work.values(), *[self.volume(self.store_axes(s)) for s in stores]], default=1)
        needed = list(rows)
        for r, elements in work.items():
            free = self.axes(r.axes)
            for axis in [axis for axis in needed if axis not in free]:
                times = -(-axis.size.hint // 512) if axis is tile else axis.size.hint
                if times > 1 and elements * times > 0.4 * most:
                    needed.remove(axis)
        return needed

    def _stages(self, stores: list[Store], reduces: dict[Expr, None], rows: list[Axis]) -> list[Stage]:
        level: dict[Expr, int] = {}
        for r in reduces:
            level[r] = 1 + max((level[x] for x in reductions_in(r.args[0])), default=0)
        stages: dict[tuple[int, tuple[Axis, ...]], Stage] = {}
        items: list[tuple[int, Item, frozenset[Axis]]]
        items = [(k, r, self.axes(r.args[0].axes)) for r, k in level.items()]
        for s in stores:
            after = max((level[x] for x in reductions_in(s.expr)), default=0)
            items.append((1 + after, s, self.store_axes(s)))
        for k, item, axes in sorted(items, key=lambda i: i[0]):
            loops = tuple(self.sorted(axes - set(rows)))
            stages.setdefault((k, loops), Stage(list(loops), [])).items.append(item)
        return list(stages.values())
