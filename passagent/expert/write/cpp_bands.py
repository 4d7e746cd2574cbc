"""Transposes in C++ kernels: what lies across the rows of a loop is turned a band of rows at a time.

Where a kernel goes along one axis and a tensor lies along the last of the rows, each of its elements would
come from another cache line. A band of rows is brought into a buffer that has the loop's order.
"""

from __future__ import annotations

from passagent.expert.lower.call import HALVES
from passagent.expert.lower.expressions import Axis, Expr
from passagent.expert.schedule.parts import Address, Group, Stage, Store
from passagent.expert.write.cpp_values import ValueWriter

BAND = 16
"""Rows turned at a time: what they share are whole cache lines of float32."""

HELPERS = f"""\
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
    """Finds what is to be turned in a group, and writes how."""

    band: Axis | None
    """The row axis that goes through memory one by one where the loops do not."""
    turned: dict[Expr | int, str]
    """Buffers of loads, and of stores (by id)."""

    def find_band(self, group: Group) -> None:
        """Choose the loads and stores of a group that are turned."""
        self.band, self.turned = None, {}
        if not group.rows:
            return
        row, addresses, other = group.rows[-1], dict[Expr | int, None](), set[Expr | int]()
        for stage in group.stages:
            accesses: list[tuple[Expr | int, str]] = [
                (e, e.dtype) for e in self.values(stage, set()) if e.kind == "load"
            ]
            accesses += [(id(s), s.expr.dtype) for s in stage.items if isinstance(s, Store)]
            for key, dtype in accesses:
                if self._across(self.s.addresses[key], dtype, row, stage, group):
                    addresses[key] = None
                else:
                    other.add(key)
        keys = [key for key in addresses if key not in other]
        if keys:
            self.band = row
            size = f"{BAND} * {self._width(group)}"
            for key in sorted(keys, key=self._rank):
                self.turned[key] = self.fresh("turned")
                self.buffers.append((self.turned[key], "float", size))

    def _rank(self, key: Expr | int) -> tuple[int, int]:
        """Loads by the number of their input, then stores."""
        return (1, 0) if isinstance(key, int) else (0, key.data)

    def _vector(self, group: Group) -> Axis:
        return next(stage.loops[-1] for stage in group.stages if stage.loops)

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

    def turned_element(self, key: Expr | int) -> str:
        """The element of a turned tensor in the current loop."""
        assert self.band is not None
        vector = self.scope.axes[-1]
        at = self.index_text(vector, relative=True)
        return f"{self.turned[key]}[({self.axis_name(self.band)} - first) * {self._width(self.g)} + {at}]"

    def _width(self, group: Group) -> str:
        """Floats from row to row of a buffer: no power of two, or all rows would share a few cache sets."""
        return f"({self.extent(self._vector(group))} + {BAND})"

    def banded(self, group: Group, inner: list[str]) -> list[str]:
        """The rows of a band around `inner`, between what is turned before and after them."""
        assert self.band is not None
        name, size, vector = self.axis_name(self.band), self.axis_size(self.band), self._vector(group)
        before = [
            f"const int64_t first = band * {BAND};",
            f"const int64_t high = std::min<int64_t>({BAND}, {size} - first);",
        ]
        after = []
        width = self._width(group).strip("()")
        count = "count" if vector is group.tile else self.extent(vector)
        for key, buffer in self.turned.items():
            address = self.s.addresses[key]
            step = self.mono(address.terms[vector])
            if isinstance(key, int):
                stored = [item for stage in group.stages for item in stage.items if isinstance(item, Store)]
                number = next(store.out for store in stored if id(store) == key)
                place = self._place(self.outputs[number], address, group, vector)
                after.append(f"turn_back({buffer}.data(), {width}, {count}, high, {place}, {step});")
            else:
                self.inputs[key.data] = key.dtype
                place = self._place(self.names[key.data], address, group, vector)
                before.append(f"turn({place}, {step}, {count}, high, {buffer}.data(), {width});")
        loop = f"for (int64_t {name} = first; {name} < first + high; ++{name}) {{"
        return [*before, loop, *[f"  {line}" for line in inner], "}", *after]

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
