"""Long reductions on CUDA, which many programs share: a kernel reduces parts, the next one what it left.

A whole tensor's sum would be one program's, and a few long rows a few programs'. Here such a reduction
becomes two: of blocks, one for each program, into a tensor of its own, and of that tensor's elements, in the
kernel that needs the result. Where each element of something large needs it, a small kernel computes it once
before. Nothing is added atomically, so that a result is the same in every run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from passagent.expert.choices import Plan
from passagent.expert.lower.expressions import ALONG, Axis, Expr, Trace, Value, parts
from passagent.expert.lower.region import Lowered, deciding
from passagent.expert.lower.symbolic_sizes import Unsupported
from passagent.expert.schedule.block_axes import LONGEST, Form, block_form
from passagent.expert.schedule.parts import Store, volume
from passagent.expert.schedule.schedule import Schedule
from passagent.expert.write.cuda_grid import Work, launches
from passagent.expert.write.wording import product

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
        shape = [*(trace.text(a.size) for a in rows), count, *(trace.text(a.size) for a in inner)]
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
            yield Step(
                Schedule(trace, values, "cuda"), buffers, [trace.text(a.size) for a in axes], dtypes, limit
            )
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
        return product(schedule.trace.text(a.size) for a in axes)

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
    rows, text = [a for axis in form.rows for a in _within(schedule, axis)], schedule.trace.text
    height = form.cross.size.hint if form.cross is not None else 0
    work = Work(
        "_split", (), schedule.volume(form.rows), schedule.volume(form.joined or [form.vector]), height, 0
    )
    (launch,) = launches([work], plan)
    if form.cross is None:
        count = f"rows // ({product(text(a.size) for a in rows)})" if rows else "rows"
        return rows, [], count, launch.programs // schedule.volume(form.rows)
    count = f"triton.cdiv({text(form.cross.size)}, together)"
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
