"""Triton kernels for the CUDA target: a group of a schedule is one kernel.

A program handles a block of (ROWS, BLOCK) elements; `cuda_grid.py` says which axes these are. Values that
vary along the lanes only are (1, BLOCK), values of a row (ROWS, 1).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import reduce

from passagent.expert.lower import deciding
from passagent.expert.lower.expressions import HALVES, Axis, Expr, parts
from passagent.expert.lower.symbolic_sizes import Unsupported, product
from passagent.expert.schedule.stages import Group, Stage, Store
from passagent.expert.write import Part, TritonKernel, bare, closed, decoded
from passagent.expert.write.cuda_grid import block_form
from passagent.expert.write.cuda_values import TYPES, TritonValues

IN_PLACE = "what writes in place"
BYTES = {**dict.fromkeys(HALVES, 2), "float64": 8, "int64": 8, "int16": 2, "bool": 1, "int8": 1, "uint8": 1}
"""The bytes of an element, where they are not 4."""
AHEAD = 4096
"""Lanes up to which all that a program reads is loaded before its first reduction: 8 elements a thread."""


def within(index: str, size: str, step: str) -> str:
    """Tell whether an index is below a size: always, if blocks fill it, as Triton knows of `x * 0 == 0`."""
    return f"{index} < {size} if {size} % {step} else {index} * 0 == 0"


def neutral(name: str, kind: str) -> str:
    """The value that changes nothing in a reduction."""
    if name == "sum":
        return "0"
    if kind == "int64_t":
        return str((1 << 63) - 1 if name == "min" else -1 << 63)
    return 'float("inf")' if name == "min" else 'float("-inf")'


class TritonWriter(TritonValues):
    """One Triton kernel for all groups of a schedule; several share out its programs among them."""

    def kernel(self, shapes: list[list[str]], parameters: list[str]) -> TritonKernel:
        """The kernel; see CppWriter.kernel."""
        exprs = [e for store in self.s.stores for e in (store.expr, *store.index)]
        self.decisive = {*parts(*exprs)} if self.s.trace.decisive else deciding(exprs)
        written = [self.part(group, alone=len(self.s.groups) == 1) for group in self.s.groups]
        texts = [*(t for s in shapes for t in s), *self.s.trace.guards, *self.sizes]
        self.take([*texts, *(t for p in written for t in [*p.rows, p.lanes, p.height, p.limit])], parameters)
        used = sorted({*self.inputs, *(k for k, n in enumerate(self.names) if n in self.outputs)})
        new_outputs = [name for name in self.outputs if name not in self.names]
        arguments = [*(self.names[k] for k in used), *self.params, *new_outputs, *self.sizes.values()]
        return TritonKernel("", self.name, used, list(self.sizes), list(self.params), written, arguments)

    def part(self, group: Group, alone: bool) -> Part:
        """The code of a group: the kernel itself where it is `alone`, else a function of its program."""
        self.g, self.lines, self.scopes, self.lone_row = group, [], [{}], None
        self.counts = dict.fromkeys([*self.names, *self.outputs], 1)
        self.form = form = block_form(self.s, group)
        self.vector, self.cross, self.joined = form.vector, form.cross, form.joined
        self.along = form.joined or ([form.vector] if form.vector is not None else [])
        self.unit = "(1,)" if form.kind == "flat" else "(1, 1)"
        halves = [k for k, dtype in enumerate(self.s.trace.dtypes) if dtype == "half"]
        loaded = [e.data for e in group.loads if e.dtype == "half"]
        self.generic = next((self.names[k] for k in [*loaded, *halves]), None)
        self._check_in_place(group)
        self.prologue("tl.program_id(0)" if alone else "program")
        start = len(self.lines)
        self._load_ahead(group)
        for stage in group.stages:
            self.stage_lines(stage)
        self._drop_unused()
        if form.ends:  # programs whose block is full need no mask; the last one does
            masked, body = self.lines[start - 1], [f"    {line}" for line in self.lines[start:]]
            full = f"    if {self.program} * BLOCK + BLOCK <= {self.lanes()}:"
            whole = [full, "        inside = lane * 0 == 0", *body]
            self.lines[start - 1 :] = [*whole, "    else:", f"    {masked}", *body]
        rows, lanes = [str(a.size) for a in form.rows], product(str(a.size) for a in self.along)
        height = product([str(form.cross.size)]) if form.cross is not None else ""
        high = form.cross.size.hint if form.cross is not None else 0
        hints = (self.s.volume(form.rows), self.s.volume(self.along), high, self._moved(group))
        tiled, loads = group.tile is not None, len(group.loads)
        return Part(
            self.lines, rows, lanes, tiled, form.kind, height, form.limit, hints, loads, ends=form.ends
        )

    def _load_ahead(self, group: Group) -> None:
        """Load before the first reduction, behind which a load waits for the memory once more.

        Indices come before what is read at them.
        """
        form, block = self.form, {self.vector, self.cross, *self.joined}
        along = self.joined or [a for a in (self.vector, self.cross) if a is not None]
        looped = form.swept is not None or any(a not in block for s in group.stages for a in s.loops)
        if not group.reductions or looped or self.s.volume(along) > AHEAD:
            return
        for stage in group.stages:
            self.count_uses(stage)
            loads = [e for e in parts(*stage.bodies) if e in stage.values and e.kind == "load"]
            for e in sorted(loads, key=lambda e: sum(part.kind == "load" for part in parts(e))):
                if not any(part.kind == "reduce" for part in parts(e)):
                    self.emit(e, 0)

    def _check_in_place(self, group: Group) -> None:
        """Raise Unsupported where an input is written that another program, or this one later, reads."""
        for store in group.stores:
            if self.outputs[store.out] not in self.names:
                continue
            number = self.names.index(self.outputs[store.out])
            loads = {e for other in self.s.groups for e in other.loads if e.data == number}
            readers = [s for s in group.stages if loads & s.values]
            elsewhere = any(loads & {*other.loads} for other in self.s.groups if other is not group)
            moved = any(self.s.addresses[e] != self.s.addresses[id(store)] for e in loads)
            again = self.form.swept is not None and len(readers) > 1
            if elsewhere or moved or again or not loads:
                raise Unsupported(IN_PLACE, "what it writes in place is read by other programs, too")

    def _moved(self, group: Group) -> int:
        """Bytes that a group reads and writes in the example."""
        read = sum(BYTES.get(e.dtype, 4) * self.s.volume(self.s.axes(e.axes)) for e in group.loads)
        written = (BYTES.get(s.expr.dtype, 4) * self.s.volume(self.s.store_axes(s)) for s in group.stores)
        return read + sum(written)

    def prologue(self, program: str) -> None:
        """Write which rows and lanes are the program's."""
        form, tile = self.form, self.g.tile
        self.program = program
        if form.kind == "flat" and tile is not None:
            self.line(f"lane = {program} * BLOCK + tl.arange(0, BLOCK)")
            self.line(f"inside = {within('lane', self.lanes(), 'BLOCK')}")
            self._split_lanes()
            return
        if self.cross is None:
            self.line(f"row = {program} * ROWS + tl.arange(0, ROWS)[:, None]")
        parts = [(self.axis_name(a), "" if k == 0 else self.axis_size(a)) for k, a in enumerate(form.rows)]
        if form.kind == "square" and self.cross is not None:
            if parts:
                self.line(f"levels = tl.cdiv({self.axis_size(self.cross)}, ROWS)")
            parts.append(("level", "levels"))
        if tile is not None:
            if parts:
                self.line(f"tiles = tl.cdiv({self.lanes()}, BLOCK)")
            parts.append(("tile", "tiles"))
        rest = "row" if self.cross is None else program
        if rest == "row" and len(parts) == 1 and tile is None:
            self.lone_row, parts = form.rows[0], []
        for name, text in decoded(rest, parts):
            self.line(f"{name} = {text}")
        if tile is not None:
            self.line("lane = tile * BLOCK + tl.arange(0, BLOCK)[None, :]")
        elif self.vector is not None and form.kind != "long":
            self.line("lane = tl.arange(0, BLOCK)[None, :]")
        if form.kind == "square":
            self.line("level = level * ROWS + tl.arange(0, ROWS)[:, None]")
        elif form.kind == "column":
            self.line("level = tl.arange(0, ROWS)[:, None]")
        self._bound(swept=False)
        self._split_lanes()

    def _split_lanes(self) -> None:
        """Write where on each of the joined axes a lane is."""
        for name, text in decoded("lane", [(self.axis_name(a), self.axis_size(a)) for a in self.joined]):
            self.line(f"{name} = {text}")

    def _drop_unused(self) -> None:
        """Leave out where on an axis a lane is if no address asks."""
        for name in map(self.axis_name, self.joined):
            if sum(bool(re.search(rf"\b{name}\b", line)) for line in self.lines) == 1:
                self.lines = [line for line in self.lines if not line.startswith(f"    {name} = ")]

    def _bound(self, swept: bool) -> None:
        """Where a program's block holds elements: along its axes that are `swept`, or those that are not."""
        form, sides = self.form, list[str]()
        if self.cross is None:
            sides.append("rows")
            if not swept:
                self.line(f"rows_inside = {within('row', 'rows', 'ROWS')}")
        else:
            sides.append("levels")
            if swept == (form.swept is self.cross):
                self.line(f"levels_inside = {within('level', self.axis_size(self.cross), 'ROWS')}")
        if self.vector is not None:
            sides.append("lanes")
            if swept == (form.swept is self.vector):
                self.line(f"lanes_inside = {within('lane', self.lanes(), 'BLOCK')}")
            if swept or form.swept is None:
                self.line(f"inside = {' & '.join(f'{side}_inside' for side in sides)}")

    def lanes(self) -> str:
        """How many there are."""
        return self.mono(reduce(self.s.times, (self.s.mono(a.size) for a in self.along)))

    def stage_lines(self, stage: Stage) -> None:
        self.count_uses(stage)
        block = {self.vector, self.cross, *self.joined}
        outer = [a for a in stage.loops if a not in block]
        swept = self.form.swept if self.form.swept in stage.loops else None
        loops = [*outer, *([swept] if swept else [])]
        for r in stage.reductions:
            initial = self.start(r, stage, loops)
            if loops:
                self.line(f"{self.results[r]} = {initial}")
        for axis in outer:
            self.line(f"for {self.axis_name(axis)} in range({self.axis_size(axis)}):")
            self.indent += 1
        if swept is not None:  # a loop over the blocks of an axis that is too long for one
            step, name, other = (
                ("BLOCK", "lane", "None, :") if swept is self.vector else ("ROWS", "level", ":, None")
            )
            self.line(f"for start in range(0, {self.axis_size(swept)}, {step}):")
            self.indent += 1
            self.line(f"{name} = start + tl.arange(0, {step})[{other}]")
            self._bound(swept=True)
        if loops:
            self.scopes.append({})
        for item in stage.items:
            if isinstance(item, Store):
                self.store_lines(item)
            else:
                self.reduce_lines(item, plain=not loops)
        if loops:
            self.scopes.pop()
        self.indent = 1
        for r in stage.reductions if loops else ():
            if self.sides(r.data[1]):
                target = self.results[r]
                self.line(f"{target} = {self.reduced(r.data[0], r.data[1], target, r.dtype)}")

    def start(self, r: Expr, stage: Stage, loops: list[Axis]) -> str:
        """Name a reduction; its value before a loop."""
        name, bound = r.data
        bound_axes = self.s.axes(bound)
        free = [a for a in stage.loops if a not in bound_axes]
        if any(a in loops for a in free) or (self.joined and free):
            raise Unsupported("schedule", "a reduction that keeps an inner axis")
        self.results[r] = self.fresh(f"{'top' if name == 'softmax_max' else name}_v")
        held = {*free, *bound_axes}  # each lane keeps its own, until the loop ends
        height = "ROWS" if self.cross is None or self.cross in held else "1"
        lanes = "BLOCK" if self.vector in held else "1"
        return f"tl.full(({height}, {lanes}), {neutral(name, self.vtype(r.dtype))}, {TYPES[r.dtype]})"

    def reduce_lines(self, r: Expr, plain: bool) -> None:
        (name, bound), target = r.data, self.results[r]
        body = self.masked(name, bound, self.emit(r.args[0], 0), r.dtype)
        if plain:
            return self.line(f"{target} = {self.reduced(name, bound, body, r.dtype)}")
        nan = ", propagate_nan=tl.PropagateNan.ALL" if self.keeps_nan(name, r.dtype) else ""
        larger = f"tl.{'minimum' if name == 'min' else 'maximum'}({target}, {body}{nan})"
        self.line(f"{target} = {f'{target} + {body}' if name == 'sum' else larger}")

    def sides(self, bound: Iterable[Axis]) -> dict[int, Axis]:
        """The block's axes, by number, that are among `bound`."""
        axes = self.s.axes(bound)
        return {k: a for k, a in enumerate((self.cross, self.vector)) if a is not None and a in axes}

    def masked(self, name: str, bound: Iterable[Axis], body: str, dtype: str) -> str:
        """The values that a reduction along `bound` reads: neutral ones outside of the tensor."""
        sides, kind = self.sides(bound), self.vtype(dtype)
        if not sides:
            return body
        other = neutral(name, kind)
        if kind == "int64_t" and name != "sum":
            other = f"tl.full((1, 1), {other}, tl.int64)"  # beside 32 bits the number alone is out of range
        return f"tl.where({self.mask(list(sides.values()))}, {bare(body)}, {other})"

    def reduced(self, name: str, bound: Iterable[Axis], body: str, dtype: str) -> str:
        """The text that reduces a block's values."""
        call = {"sum": "tl.sum({}, axis={}", "min": "tl.min({}, axis={}"}.get(name, "tl.max({}, axis={}")
        if self.keeps_nan(name, dtype):
            call = f"tl.reduce({{}}, {{}}, {'_smaller' if name == 'min' else '_larger'}"
        for number in self.sides(bound):
            body = f"{call.format(body, number)}, keep_dims=True)"
        return body

    def store_lines(self, store: Store) -> None:
        expr = self.unrounded(store)
        value = self.emit(expr, 0)
        if expr.kind == "const":  # a number of Python's has no dtype
            value = self.number(expr.data, expr.dtype, typed=True)
        elif expr.kind == "size":
            value = f"tl.full({self.unit}, {bare(value)}, {TYPES[expr.dtype]})"
        axes, where = self.s.axes(store.axes), self.where(self.s.addresses[id(store)])
        mask, name = self.mask(axes), self.outputs[store.out]
        if not self.is_block(axes):
            where += " + row * 0" if self.cross is None else " + tl.zeros((1, 1), tl.int32)"
        if store.expr.dtype == "half":
            self.half_of()
        if store.expr.dtype in HALVES:
            value = f"{value if closed(value) else f'({value})'}.to({name}.dtype.element_ty)"
        self.line(f"tl.store({name} + {where}, {bare(value)}{f', mask={mask}' if mask else ''})")
