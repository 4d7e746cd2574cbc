"""Choose the axes of a Triton program's block: (ROWS, BLOCK) elements of one group of loops."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from passagent.expert.choices import Plan
from passagent.expert.lower.expressions import ALONG, Axis, Expr, Trace, Value, parts
from passagent.expert.lower.region import Lowered, deciding
from passagent.expert.lower.symbolic_sizes import Unsupported
from passagent.expert.schedule.parts import HELD, NARROW, Group, Mono, Store, volume
from passagent.expert.schedule.schedule import Schedule
from passagent.expert.write.cuda_grid import Work, launches
from passagent.expert.write.wording import product

LONGEST = 32768
"""Lanes that a program holds at once, at most."""
TALL = 16
"""Elements of an outer axis from which it is part of the block, and no loop."""
EVEN, BLOCKS = 8, 1024
"""Elements that a thread loads at once. A mask that ends between them makes it load them one by one, so of
more elements than the second only the last program's block has one."""
ALONE = 1 << 22
"""Elements from which a reduction needs more than a handful of programs."""


@dataclass
class Form:
    """The form of a program's block.

    kind: `flat` (one long run of lanes), `rows` (several rows of lanes, a row being one index of each of the
    rows' axes), `long` (rows whose lanes are swept in a loop), `square` (a tile of two axes, for transposes),
    `column` (the second axis of the block is reduced in the program), `tall` (it is swept in a loop), `split`
    and `levels` (many programs share what is reduced, along the lanes or the other axis: below).
    """

    kind: str
    rows: list[Axis]
    vector: Axis | None
    """The lanes' axis: the innermost."""
    cross: Axis | None = None
    """The block's other axis, where it is not the rows."""
    joined: list[Axis] = field(default_factory=list)
    """Axes that the lanes run over together."""
    swept: Axis | None = None
    """The axis whose blocks a loop runs over."""
    limit: str = ""
    """A host condition under which this form was chosen, where another would serve as well."""

    def runs(self, schedule: Schedule, terms: dict[Axis, Mono]) -> bool:
        """Tell whether an address walks the joined axes as one."""
        if not all(a in terms for a in self.joined):
            return False
        pairs = zip(self.joined, self.joined[1:], strict=False)
        return all(terms[a] == schedule.times(terms[b], schedule.mono(b.size)) for a, b in pairs)


def block_form(schedule: Schedule, group: Group) -> Form:
    """The form for a group. Raises Unsupported where there is none, or one that leaves the device idle."""
    form = _form(schedule, group)
    reduces = bool(group.reductions) or _scans(group)
    rows = schedule.volume(form.rows)
    if group.tile is not None:
        rows *= -(-group.tile.size.hint // 64)
    work = rows * max((schedule.volume(s.loops) for s in group.stages), default=1)
    if reduces and rows < 8 and work > ALONE:
        raise Unsupported("schedule", "a few long sums keep few of the device's processors busy")
    return form


def _form(schedule: Schedule, group: Group) -> Form:
    tile, rows = group.tile, list(group.rows)
    part = next((store.partial for store in group.stores), None)
    if part is not None:
        return _parted(schedule, group, schedule.axes(part[1]))
    looped = [s.loops for s in group.stages if s.loops]
    stores, only_stores = group.stores, not group.reductions and not _scans(group)
    if tile is not None and only_stores and all(tile in schedule.store_axes(s) for s in stores):
        if not rows:
            odd = tile.size.hint % EVEN and tile.size.hint > BLOCKS
            return Form("flat", rows, tile, limit=f"({tile.size}) % {EVEN}" if odd else "")
        across = _across(schedule, stores, rows, tile)
        if across is not None and all(loops == [tile] for loops in looped):
            return Form("square", [a for a in rows if a is not across], tile, across)
    if not looped:
        return Form("rows", rows, tile)
    every = schedule.sorted({a for loops in looped for a in loops})
    vector = tile or every[-1]
    whole = len(every) > 1 and all(loops == every for loops in looped)
    if tile is None and whole and schedule.volume(every) <= LONGEST:
        return Form("rows", rows, vector, joined=every, limit=_at_most(every, LONGEST))
    others = [a for a in every if a is not vector]
    is_split = any(loops[-1] is not vector for loops in looped)
    cross = max(others, key=lambda a: a.size.hint, default=None)
    if cross is not None and (is_split or cross.size.hint >= TALL):
        lanes = NARROW if tile is not None else vector.size.hint
        if cross.size.hint * lanes <= HELD:
            limit = _at_most([cross, vector], HELD) if tile is None else _at_most([cross], HELD // NARROW)
            return Form("column", rows, vector, cross, limit=limit)
        if not is_split and lanes <= HELD:
            return Form("tall", rows, vector, cross, swept=cross)
    if is_split:
        raise Unsupported("schedule", "stages of one row run along different axes")
    if tile is None and vector.size.hint > LONGEST:
        return Form("long", rows, vector, swept=vector)
    limits = [_at_most([vector], LONGEST)] if tile is None else []
    limits += [_at_most([cross], TALL - 1)] if cross is not None else []
    return Form("rows", rows, vector, limit=" and ".join(limits))


def _scans(group: Group) -> bool:
    """Tell whether something runs along a row, which then is one program's."""
    return any(e.kind == "scan" for e in group.parts)


def _parted(schedule: Schedule, group: Group, bound: frozenset[Axis]) -> Form:
    """Each program reduces its block along the one axis that is reduced: that of the lanes, or another."""
    whole = all(stage.loops in ([], [group.tile]) for stage in group.stages)
    if group.tile is None or not whole or not bound <= {group.tile, *group.rows}:
        raise Unsupported("schedule", "what is reduced in parts would be computed again")
    rows, axes = [a for a in group.rows if a not in bound], schedule.sorted(bound)
    if group.tile in bound:
        return Form("split", rows, group.tile, joined=axes if len(axes) > 1 else [])
    if len(axes) > 1:
        raise Unsupported("schedule", "what is reduced in parts lies along several axes")
    return Form("levels", rows, group.tile, axes[0])


def _at_most(axes: list[Axis], most: int) -> str:
    return f"{' * '.join(str(a.size) for a in axes)} <= {most}"


def _across(schedule: Schedule, stores: list[Store], rows: list[Axis], tile: Axis) -> Axis | None:
    """The row axis that a large access runs along in memory, where the lanes' axis does not."""
    addresses = list(schedule.addresses.values())
    largest = max(schedule.volume(a.terms) for a in addresses)
    stored = [a for a in rows if a.size.hint >= 8 and all(a in schedule.store_axes(s) for s in stores)]
    for terms in (a.terms for a in addresses if 2 * schedule.volume(a.terms) >= largest):
        if terms.get(tile, (1, ())) != (1, ()):
            for axis in (a for a in stored if terms.get(a) == (1, ())):
                return axis
    return None


FEW_ROWS = 64
"""Rows of which each is a run of memory, up to which programs share a row."""
HIGH, FEW_COLUMNS, WORTH = 1024, 1024, 1 << 17
"""Along an outer axis programs share what has more than this length, up to so many results, and of so many
elements."""


@dataclass
class Step:
    """The work of a kernel before the last one."""

    schedule: Schedule
    buffers: list[str]
    """The names of its outputs as inputs of the next kernels."""
    shape: list[str]
    """The shape of each output, as host expressions of the plan."""
    dtypes: list[str]
    limit: str
    """For which sizes it is worth a kernel, as a host condition; empty: for all."""


def steps(low: Lowered, plan: Plan, names: list[str]) -> Iterator[Step]:
    """The kernels before the last one, whose outputs then are inputs of what is left to `low`."""
    trace, stored, input_count = low.trace, set[Expr](), len(names)
    low.outputs = [value.refresh() for value in low.outputs]
    low.written = {k: (value.refresh(), node) for k, (value, node) in low.written.items()}
    while reduces := _long(low, stored):
        schedule = Schedule(trace, [], "cuda", _stores(trace, reduces))
        (stage,) = schedule.groups[0].stages
        reduces = [reduces[s.out] for s in stage.stores]
        stored |= set(reduces)
        if deciding(value.expr for value in _values(low)) & stored:
            trace.decisive = True  # the kernel of the parts would not show it
        schedule = Schedule(trace, [], "cuda", _stores(trace, reduces))
        try:
            form = block_form(schedule, schedule.groups[0])
        except Unsupported:
            continue
        limit = _limit(schedule, form)
        if limit is None:
            continue
        if any(f"s{k}[" in limit for k in range(input_count, len(names))):
            limit = ""  # parts of parts
        rows, inner, count, number = _left(schedule, form, plan)
        buffers, dtypes = _fresh("partial", reduces, names), [r.dtype for r in reduces]
        shape = [*(str(a.size) for a in rows), count, *(str(a.size) for a in inner)]
        yield Step(schedule, buffers, shape, dtypes, limit)
        names += buffers
        new = {}
        for r in reduces:
            axis = trace.axis(trace.size(number, f"s{len(trace.inputs)}[{len(rows)}]"))
            read = trace.read([*rows, axis, *inner], r.dtype)
            new[r] = trace.make("reduce", (r.data[0], (axis,)), (read,), r.dtype)
        if _spread(low, reduces):
            axes = sorted(reduces[0].axes, key=lambda a: a.number)
            values = [Value([(a,) for a in axes], r) for r in new.values()]
            buffers = _fresh("total", reduces, names)
            yield Step(Schedule(trace, values, "cuda"), buffers, [str(a.size) for a in axes], dtypes, limit)
            names += buffers
            new = {r: trace.read(axes, r.dtype) for r in reduces}
        _replace(low, new)


def _stores(trace: Trace, reduces: list[Expr]) -> list[Store]:
    stores = []
    for k, r in enumerate(reduces):
        axes = [*sorted(r.axes, key=lambda a: a.number), *r.data[1]]
        stores.append(Store(k, [trace.index(a) for a in axes], [], r.args[0], r.data))
    return stores


def _fresh(stem: str, reduces: list[Expr], names: list[str]) -> list[str]:
    numbers = (k for k in range(1, len(names) + len(reduces) + 2) if f"{stem}{k}" not in names)
    return [f"{stem}{k}" for k, _ in zip(numbers, reduces, strict=False)]


def _long(low: Lowered, stored: set[Expr]) -> list[Expr]:
    """Reductions along the same axes that may be worth sharing, of values that no other one is part of."""
    reduces: list[Expr] = []
    for r in parts(*(value.expr for value in _values(low))):
        if r.kind != "reduce" or r in stored or any(e.kind in ALONG for e in parts(r.args[0])):
            continue
        long, few = volume(r.data[1]), volume(r.axes)
        worth = long > HIGH and few <= FEW_COLUMNS and long * few > LONGEST
        if worth and (not reduces or (r.axes, r.data[1]) == (reduces[0].axes, reduces[0].data[1])):
            reduces.append(r)
    return reduces


def _values(low: Lowered) -> list[Value]:
    return [*low.outputs, *(value for value, _ in low.written.values())]


def _limit(schedule: Schedule, form: Form) -> str | None:
    """The sizes for which programs are to share; None where the example's are not among them."""

    def text(axes: list[Axis]) -> str:
        return product(str(a.size) for a in axes)

    assert form.vector is not None
    if form.cross is None:
        lanes = form.joined or [form.vector]
        fits = schedule.volume(lanes) > LONGEST and schedule.volume(form.rows) <= FEW_ROWS
        rows = [f"{text(form.rows)} <= {FEW_ROWS}"] if form.rows else []
        return " and ".join([f"{text(lanes)} > {LONGEST}", *rows]) if fits else None
    results, long = [*form.rows, form.vector], form.cross.size.hint
    few = schedule.volume(results)
    if long <= HIGH or few > FEW_COLUMNS or long * few < WORTH:
        return None
    every = text([*results, form.cross])
    return f"{text([form.cross])} > {HIGH} and {text(results)} <= {FEW_COLUMNS} and {every} >= {WORTH}"


def _left(schedule: Schedule, form: Form, plan: Plan) -> tuple[list[Axis], list[Axis], str, int]:
    """The axes outside of the parts and inside, how many parts there are, and how many in the example."""
    assert form.vector is not None
    rows = [a for axis in form.rows for a in _within(schedule, axis)]
    height = form.cross.size.hint if form.cross is not None else 0
    lanes = schedule.volume(form.joined or [form.vector])
    work = Work("_split", (), schedule.volume(form.rows), lanes, height, 0)
    (launch,) = launches([work], plan)
    if form.cross is None:
        count = f"rows // ({product(str(a.size) for a in rows)})" if rows else "rows"
        return rows, [], count, launch.programs // schedule.volume(form.rows)
    count = f"triton.cdiv({form.cross.size}, together)"
    return rows, _within(schedule, form.vector), count, -(-height // launch.together)


def _within(schedule: Schedule, axis: Axis) -> list[Axis]:
    """The axes that a merged one consists of, outermost first."""
    inner = [a for a, into in schedule.merged.items() if into is axis]
    return [b for a in inner for b in _within(schedule, a)] if inner else [axis]


def _spread(low: Lowered, reduces: list[Expr]) -> bool:
    """Tell whether what reads the results has other axes or reductions: it would repeat the reduction."""
    for value in _values(low):
        inside = parts(value.expr)
        axes = value.expr.axes.union(*value.dims)
        has_others = any(e.kind == "reduce" and e not in reduces for e in inside)
        if any(r in inside and (has_others or not axes <= r.axes) for r in reduces):
            return True
    return False


def _replace(low: Lowered, new: dict[Expr, Expr]) -> None:
    def replaced(value: Value) -> Value:
        return Value(value.dims, low.trace.replace(value.expr, new))

    low.outputs = [replaced(value) for value in low.outputs]
    low.written = {k: (replaced(value), node) for k, (value, node) in low.written.items()}
