"""Rows of C++ kernels: transposes a band of rows at a time, and tables of what is the same in every row.

Where a kernel goes along one axis and a tensor lies along the last of the rows, each of its elements would
come from another cache line. A band of rows is brought into a buffer that has the loop's order.
"""

from __future__ import annotations

from passagent.expert.lower.expressions import HALVES, Axis, Expr, parts
from passagent.expert.schedule.parts import Address, Group, Stage
from passagent.expert.write.cpp_values import BAND, ValueWriter, indented
from passagent.expert.write.writer import cost

FEWEST_ROWS = 8
"""Rows from which a table pays."""
LONGEST = 16384
"""Elements of a table, at most."""
COSTLY = 4
"""Operations of a value of float32 that is worth a table; one of 16 bits is worth it for its conversion."""

TURNING = f"""\
// {BAND} rows of a tensor that lies across them: n elements of each, `step` apart, to rows of floats or back.
template <class T>
static void turn(const T* from, int64_t step, int64_t n, int64_t rows, float* to, int64_t width) {{
  float square[{BAND}][{BAND}];
  for (int64_t start = 0; start < n; start += {BAND}) {{
    const int64_t count = std::min<int64_t>({BAND}, n - start);
    for (int64_t i = 0; i < count; ++i) load_f32(square[i], from + (start + i) * step, rows);
    for (int64_t k = 0; k < rows; ++k)
      for (int64_t i = 0; i < count; ++i) to[k * width + start + i] = square[i][k];
  }}
}}
template <class T>
static void turn_back(const float* from, int64_t width, int64_t n, int64_t rows, T* to, int64_t step) {{
  for (int64_t i = 0; i < n; ++i) {{
    float line[{BAND}];
    for (int64_t k = 0; k < rows; ++k) line[k] = from[k * width + i];
    store_f32(to + i * step, line, rows);
  }}
}}
"""


class BandWriter(ValueWriter):
    """Finds what is to be turned in a group, and what depends on the innermost axis alone, and writes how."""

    def find_band(self, group: Group) -> None:
        """Choose the loads and stores of a group that are turned."""
        if not group.rows:
            return
        row, addresses, other = group.rows[-1], dict[Expr | int, None](), set[Expr | int]()
        for stage in group.stages:
            accesses: list[tuple[Expr | int, str]] = [(e, e.dtype) for e in stage.values if e.kind == "load"]
            accesses += [(id(s), s.expr.dtype) for s in stage.stores]
            for key, dtype in accesses:
                if self._across(self.s.addresses[key], dtype, row, stage, group):
                    addresses[key] = None
                else:
                    other.add(key)
        keys = [key for key in addresses if key not in other]
        if keys:
            self.band = row
            size = f"{BAND} * {self._width(group)}"
            # loads by the number of their input, then stores
            for key in sorted(keys, key=lambda key: (1, 0) if isinstance(key, int) else (0, key.data)):
                self.turned[key] = self.fresh("turned")
                self.buffers.append((self.turned[key], "float", size))

    def _across(self, address: Address, dtype: str, row: Axis, stage: Stage, group: Group) -> bool:
        loops = stage.loops if group.tile is None else [*stage.loops[:-1], group.tile]
        if dtype not in {*HALVES, "float32"} or stage.loops != loops or len(loops) != 1:
            return False
        vector = loops[0]
        if self.is_short(vector) or vector is not self._vector(group):
            return False
        steps, axes = address.terms, {*group.rows, vector}
        plain = set(steps) <= axes and all(e is None for e, _ in address.rest)
        return plain and steps.get(row) == (1, ()) and vector in steps and steps[vector] != (1, ())

    def banded(self, group: Group, inner: list[str]) -> list[str]:
        """The rows of a band around `inner`, between what is turned before and after them."""
        assert self.band is not None
        name, size, vector = self.axis_name(self.band), self.axis_size(self.band), self._vector(group)
        before, after = [f"const int64_t first = band * {BAND};"], list[str]()
        before.append(f"const int64_t high = std::min<int64_t>({BAND}, {size} - first);")
        width = self._width(group).strip("()")
        count = "count" if vector is group.tile else self.extent(vector)
        for key, buffer in self.turned.items():
            address = self.s.addresses[key]
            step = self.mono(address.terms[vector])
            if isinstance(key, int):
                number = next(store.out for store in group.stores if id(store) == key)
                place = self._place(self.outputs[number], address, group, vector)
                after.append(f"turn_back({buffer}.data(), {width}, {count}, high, {place}, {step});")
            else:
                self.inputs[key.data] = key.dtype
                place = self._place(self.names[key.data], address, group, vector)
                before.append(f"turn({place}, {step}, {count}, high, {buffer}.data(), {width});")
        loop = f"for (int64_t {name} = first; {name} < first + high; ++{name}) {{"
        return [*before, loop, *indented(inner), "}", *after]

    def _place(self, name: str, address: Address, group: Group, vector: Axis) -> str:
        """Where a band begins in a tensor."""
        parts = [name]
        for axis in group.rows:
            if axis in address.terms:
                index = "first" if axis is self.band else self.axis_name(axis)
                parts.append(self.scaled(index, address.terms[axis]))
        if vector is group.tile:
            parts.append(self.scaled("start", address.terms[vector]))
        parts += [self.mono(mono) for _, mono in address.rest]
        return " + ".join(parts)

    def find_tables(self, group: Group) -> list[str]:
        """Choose the tables of a group; the lines that fill them."""
        rows = [*group.rows, *([group.tile] if group.tile else [])]
        fewest = FEWEST_ROWS * (group.tile.size.hint if group.tile else 1)
        chosen: dict[Expr, Axis] = {}
        for stage in group.stages:
            if len(stage.loops) == 1 and self.s.volume(rows) >= fewest:
                chosen |= dict.fromkeys(self._tables_of(stage), stage.loops[0])
        loads = {e: _converted(e) for e in chosen}
        stems = {e: f"{self.names[load.data]}_table" if load else "table" for e, load in loads.items()}
        names = {e: self.fresh(stem) for e, stem in stems.items()}
        lines = [line for e, axis in chosen.items() for line in self._filled(e, axis, names[e])]
        self.tables = names
        return lines

    def _tables_of(self, stage: Stage) -> list[Expr]:
        """The largest values of a stage that depend on its axis alone and are worth a table."""
        axis = stage.loops[0]
        if self.is_short(axis) or axis.size.hint > LONGEST:
            return []

        def pays(e: Expr) -> bool:
            if self.s.axes(e.every) != {axis} or e.dtype not in {*HALVES, "float32"}:
                return False
            return cost(e) >= COSTLY or any(p.kind == "load" and p.dtype in HALVES for p in parts(e))

        values = parts(*stage.bodies, whole=lambda e: e.kind == "reduce" or pays(e))
        return [e for e in values if e.kind != "reduce" and pays(e)]

    def _filled(self, e: Expr, axis: Axis, name: str) -> list[str]:
        """The loop that fills a table."""
        group, self.g = self.g, Group([], None, [])
        stage = Stage([axis], [])
        self.begin(stage)
        self.uses = dict.fromkeys(parts(e), 2)
        size = self.axis_size(axis)
        self.buffers.append((name, "float", size))
        load = _converted(e)
        if load is not None and self.walks(self.s.addresses[load]):
            self.inputs[load.data] = load.dtype
            row, _ = self.pointer(self.names[load.data], load.dtype, self.s.addresses[load], const=True)
            lines = [*self.scope.lines[0], f"load_f32(&{name}[0], {row}, {size});"]
        else:
            value = self.emit(e, 1)
            self.scope.lines[1].append(f"{name}[start + j] = {value};")
            lines = self.nest(stage)
        self.g = group
        return lines


def _converted(e: Expr) -> Expr | None:
    """The load of 16 bits that `e` is as a float, and no more than that."""
    if e.kind == "op" and e.data == "cast" and e.dtype == "float32":
        e = e.args[0]
    return e if e.kind == "load" and e.dtype in HALVES else None
