"""C++ kernels for the CPU target: a schedule as text, with OpenMP over rows and vectorised inner loops.

Where a kernel goes along one axis and a tensor lies along the last of the rows, each of its elements would
come from another cache line. A band of rows is brought into a buffer that has the loop's order. What is the
same in every row is computed once, into a table.
"""

from __future__ import annotations

from passagent.expert.lower.expressions import FLOATING, HALVES, Axis, Expr, parts
from passagent.expert.schedule.stages import Address, Group, Stage, Store
from passagent.expert.write import Kernel, bare, cost, decoded, parenthesised, wrapped
from passagent.expert.write.cpp_values import BAND, ValueWriter, indented

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

VECTOR = "#include <vector>\n"

HELPERS = """\
// Rows of T as float: float32 in place, 16-bit types through a buffer.
template <class T> static const float* as_float(const T* row, float* buffer, int64_t n) {
  load_f32(buffer, row, n);
  return buffer;
}
static const float* as_float(const float* row, float*, int64_t) { return row; }
template <class T> static float* room(T*, float* buffer) { return buffer; }
static float* room(float* row, float*) { return row; }
template <class T> static void put(T* row, const float* values, int64_t n) { store_f32(row, values, n); }
static void put(float*, const float*, int64_t) {}
"""

CHOICE = """\
// test ? a : b where both are at hand: a branch around a call of expf and the like is not vectorised.
static inline float either(bool test, float a, float b) {
  const uint32_t mask = -static_cast<uint32_t>(test);
  const uint32_t bits = (__builtin_bit_cast(uint32_t, a) & mask) | (__builtin_bit_cast(uint32_t, b) & ~mask);
  return __builtin_bit_cast(float, bits);
}
"""


class CppWriter(ValueWriter):
    """One C++ function for all groups of a schedule; `names` are of the inputs."""

    def kernel(self, shapes: list[list[str]], parameters: list[str]) -> Kernel:
        """The C++ kernel.

        `shapes` are host expressions of the outputs' sizes: of the inputs and the pattern's `parameters`
        those that they or the guards name are arguments, too.
        """
        alone = len(self.s.groups) == 1
        bodies = [*map(self.check, self.s.outside), *(self.group(g, alone) for g in self.s.groups)]
        texts = [*(t for s in shapes for t in s), *self.s.trace.guards, *self.sizes]
        self.take(texts, parameters)
        types = {store.out: store.expr.dtype for store in self.s.stores}
        arguments = [f"const {self.ctype(d)}* {self.names[k]}" for k, d in sorted(self.inputs.items())]
        arguments += [f"{'int64_t' if n.startswith('size') else 'double'} {n}" for n in self.params]
        arguments += [f"{self.ctype(types[k])}* {n}" for k, n in enumerate(self.outputs)]
        arguments += [f"int64_t {n}" for n in self.sizes.values()]
        template = "template <class T>\n" if any("T*" in a for a in arguments) else ""
        returns = "int" if self.s.outside else "void"
        signature = f"{template}{returns} {self.name}({wrapped(arguments, len(self.name) + 8)}) {{"
        end = ["  return 0;"] if self.s.outside else []
        text = "\n".join([signature, *[line for body in bodies for line in body], *end, "}\n"])
        needed = {VECTOR: self.heap, HELPERS: self.blocked, TURNING: self.turns, CHOICE: self.chooses}
        source = "\n".join([*(helper for helper, is_needed in needed.items() if is_needed), text])
        return Kernel(source, self.name, sorted(self.inputs), list(self.sizes), list(self.params))

    def check(self, outside: Expr) -> list[str]:
        """Return 1, before anything is written, where an index is out of range."""
        maximum = self.s.trace.make("reduce", ("max", tuple(outside.axes)), (outside,), "int64")
        stage = Stage(self.s.sorted(self.s.axes(outside.axes)), [maximum])
        lines = self.group(Group([], None, [stage]), alone=True)
        lines = ["  // out of range: an IndexError", *lines, f"  if ({self.results[maximum]} > 0) return 1;"]
        return ["  {", *indented(lines), "  }"]

    def group(self, group: Group, alone: bool) -> list[str]:
        self.begin_group(group)
        self.find_band(group)
        levels = len(group.rows) + (group.tile is not None)
        self.lone_row = group.rows[0] if levels == 1 and group.rows and self.band is None else None
        self.turns = self.turns or self.band is not None
        tables = self.find_tables(group)
        self.keeping = [self.to_keep(group, k) for k in range(len(group.stages))]
        stages = [self.stage(s, k) for k, s in enumerate(group.stages)]
        parts = [(self.axis_name(a), self.axis_size(a)) for a in group.rows if a is not self.band]
        head, bounds, block = list[str](), list[str](), self.plan.block
        if self.band is not None:
            n = self.axis_size(self.band)
            head.append(f"const int64_t bands = ({n} + {BAND - 1}) / {BAND};")
            parts.append(("band", "bands"))
        if group.tile is not None:
            n = self.axis_size(group.tile)
            head.append(f"const int64_t tiles = ({n} + {block - 1}) / {block};")
            parts.append(("tile", "tiles"))
            bounds.append(f"const int64_t start = tile * {block};")
            bounds.append(f"const int64_t count = std::min<int64_t>({block}, {n} - start);")
        walks = ([*group.rows, *stage.loops] for stage in reversed(group.stages))
        work = " * ".join(self.axis_size(a) for a in max(walks, key=self.s.volume, default=[])) or "1"
        inner = [*self.row.lines[0], *(line for lines in stages for line in lines)]
        if self.band is not None:
            inner = self.banded(group, inner)
        indices = decoded("row", [(name, parenthesised(size)) for name, size in parts], "/")
        named = [f"const int64_t {name} = {text};" for name, text in indices if name != "row"]
        inner = [*named, *bounds, *inner]
        # Buffers of a known size are on the stack, others on the heap, one for each thread.
        self.heap = self.heap or any(not c.isdigit() for _, _, c in self.buffers)
        before = [
            f"{t} {n}[{c}];" if c.isdigit() else f"std::vector<{t}> {n}({c});" for n, t, c in self.buffers
        ]
        before += tables
        lines = [*before, *inner]
        if parts:
            loop = ["for (int64_t row = 0; row < rows; ++row) {", *indented(inner), "}"]
            head.append(f"const int64_t rows = {' * '.join(size for _, size in parts)};")
            condition = f"if ({work} > {self.plan.grain})"
            lines = [*head, f"#pragma omp parallel for {condition}", *loop]
            if self.buffers:
                whole = indented([*before, "#pragma omp for", *loop])
                lines = [*head, f"#pragma omp parallel {condition}", "{", *whole, "}"]
        return indented(lines if alone else ["{", *indented(lines), "}"])

    def to_keep(self, group: Group, number: int) -> set[Expr]:
        """Costly values of stage `number` that a later stage over the same loops needs again."""
        stage = group.stages[number]
        if not self.plan.keep or not stage.loops or self.s.volume(stage.loops) > 65536:
            return set()
        vector, chosen = stage.loops[-1], set[Expr]()

        def is_here(e: Expr) -> bool:
            return e in stage.values and vector in self.s.axes(e.axes) and e.dtype in {*HALVES, "float32"}

        for later in group.stages[number + 1 :]:
            if later.loops == stage.loops:  # the largest that both have
                values = parts(*later.bodies, whole=lambda e: e.kind == "reduce" or is_here(e))
                chosen |= {e for e in values if is_here(e) and cost(e) >= self.plan.keep}
        return chosen

    def stage(self, stage: Stage, number: int) -> list[str]:
        self.count_uses(stage)
        self.at = number
        self.begin(stage)
        for item in stage.items:
            if isinstance(item, Store):
                self.store(item)
            else:
                self.reduction(item)
        self.buffered.update(self.new_kept)
        return self.nest(stage)

    def store(self, store: Store) -> None:
        depth = len(self.scope.axes)
        address = self.s.addresses[id(store)]
        if self.copied(store):
            return
        value, body = bare(self.emit(self.unrounded(store), depth)), self.scope.lines[depth]
        if id(store) in self.turned:
            body.append(f"{self.turned_element(id(store))} = {value};")
            return
        name, dtype = self.outputs[store.out], store.expr.dtype
        if self.apart(dtype) and not self.walks(address):
            buffer = self.fresh(f"{name}_values")
            lines, (element, _) = self.aside(lambda: self.pointer(name, dtype, address, const=False))
            self.before_block.append(f"{self.vtype(dtype)} {buffer}[{self.plan.block}];")
            body.append(f"{buffer}[j] = {value};")
            self.after_block += self.element_loop([*lines, f"{element} = {buffer}[j];"])
            return
        pointer, unit = self.pointer(name, dtype, address, const=False)
        if dtype in HALVES and unit:
            self.blocked = True
            buffer, row = self.fresh(f"{name}_buffer"), self.fresh(f"{name}_values")
            self.before_block.append(f"float {buffer}[{self.plan.block}];")
            self.before_block.append(f"float* {row} = room({pointer} + start, {buffer});")
            self.after_block.append(f"put({pointer} + start, {row}, count);")
            body.append(f"{row}[j] = {value};")
        else:
            body.append(f"{pointer} = {value};")

    def copied(self, store: Store) -> bool:
        """Elements that are only moved, in runs, are copied as they are."""
        e, to = store.expr, self.s.addresses[id(store)]
        is_moved = e.kind == "load" and self.uses.get(e, 0) <= 1
        if not (is_moved and self.walks(to) and self.walks(self.s.addresses[e])):
            return False
        self.inputs[e.data] = e.dtype
        source = self.pointer(self.names[e.data], e.dtype, self.s.addresses[e], const=True)[0]
        target = self.pointer(self.outputs[store.out], e.dtype, to, const=False)[0]
        ends = [text.removesuffix("[start + j]") for text in (source, target)]
        self.after_block.append(f"std::copy_n({ends[0]} + start, count, {ends[1]} + start);")
        return True

    def reduction(self, r: Expr) -> None:
        name, bound = r.data
        loops = self.scope.axes
        body = self.emit(r.args[0], len(loops))
        kind, vtype = ("max" if name in {"max", "softmax_max"} else name), self.vtype(r.dtype)
        made_of = r.args[0].args[0] if r.args[0].data == "cast" else r.args[0]
        stays = self.keeps_nan(name, r.dtype) and made_of.dtype in FLOATING  # a NaN that may be there
        start = "0" if kind == "sum" else f"{'-' * (kind == 'max')}std::numeric_limits<{vtype}>::infinity()"
        if vtype == "int64_t" and kind != "sum":
            start = f"std::numeric_limits<int64_t>::{'lowest' if kind == 'max' else 'max'}()"
        stem = {"softmax_max": "top"}.get(name, name)
        target = self.results[r] = self.fresh(stem)
        bound_axes = self.s.axes(bound)
        free = [a for a in loops if a not in bound_axes]
        inner_free = [a for k, a in enumerate(loops) if a in free and any(b in bound_axes for b in loops[:k])]
        if not loops:
            self.scope.lines[0].append(f"const {vtype} {target} = {bare(body)};")
            return
        # a float that adds up many values in turn loses digits
        wide = kind == "sum" and vtype == "float"
        held, total = ("double", self.fresh("running_sum")) if wide else (vtype, target)
        if not inner_free:
            level = len(free)
            part = self.fresh(f"{stem}_part")
            self.scope.lines[level].append(f"{held} {total} = {start};")
            self.before_block.append(f"{vtype} {part} = {start};")
            op = {"sum": "+"}.get(kind, kind)
            self.clauses.setdefault(op, []).append(part)
            flag = self.fresh("has_nan") if stays else ""
            if flag:  # lanes are combined by a plain maximum, which loses NaN
                self.before_block.append(f"{'int64_t' if vtype == 'double' else 'int32_t'} {flag} = 0;")
                self.clauses.setdefault("|", []).append(flag)
            self.scope.lines[len(loops)].append(self.update(kind, part, body, False, flag))
            whole = f"{flag} ? std::numeric_limits<{vtype}>::quiet_NaN() : {part}" if flag else part
            self.after_block.append(self.update(kind, total, whole, stays))
            value = f"static_cast<{vtype}>({total})" if wide else total
            if free:
                self.results[r] = self.buffer(free, vtype, f"{stem}s")
                self.scope.tails[level].append(f"{self.results[r]}[{self.offset(free, free)}] = {value};")
            elif wide:
                self.scope.tails[0].append(f"const {vtype} {target} = {value};")
            return
        buffer = self.buffer(free, held, "running_sums" if wide else f"{stem}s")
        size = " * ".join(self.extent(a) for a in free)
        self.scope.lines[0].append(f"std::fill_n(&{buffer}[0], {size}, {held}({start}));")
        element = f"{buffer}[{self.offset(free, loops)}]"
        self.scope.lines[len(loops)].append(self.update(kind, element, body, stays))
        self.results[r] = buffer
        if wide:
            self.results[r] = self.buffer(free, vtype, f"{stem}s")
            self.scope.tails[0].append(f"std::copy_n(&{buffer}[0], {size}, &{self.results[r]}[0]);")

    def update(self, kind: str, target: str, body: str, stays: bool, flag: str = "") -> str:
        """Take another value into a reduction, in which NaN `stays`, or is noted in `flag`."""
        if kind == "sum":
            return f"{target} += {bare(body)};"
        value = self.fresh("value")
        test = f"{value} {'>' if kind == 'max' else '<'} {target}"
        noted = f" {flag} |= {value} != {value};" if flag else ""
        if stays:
            test = f"({test}) | ({value} != {value})"
        return f"{{ const auto {value} = {bare(body)}; {target} = ({test}) ? {value} : {target};{noted} }}"

    # what is turned, and what depends on the innermost axis alone

    def find_band(self, group: Group) -> None:
        """Choose the loads and stores of a group that are turned."""
        if not group.rows:
            return
        row, across = group.rows[-1], dict[Expr | int, bool]()
        for stage in group.stages:
            accesses: list[tuple[Expr | int, str]] = [(e, e.dtype) for e in stage.values if e.kind == "load"]
            accesses += [(id(s), s.expr.dtype) for s in stage.stores]
            for key, dtype in accesses:
                is_across = self._across(self.s.addresses[key], dtype, row, stage, group)
                across[key] = is_across and across.get(key, True)
        keys = [key for key, is_across in across.items() if is_across]
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
                place = self._place(self.outputs[number], address, group)
                after.append(f"turn_back({buffer}.data(), {width}, {count}, high, {place}, {step});")
            else:
                self.inputs[key.data] = key.dtype
                place = self._place(self.names[key.data], address, group)
                before.append(f"turn({place}, {step}, {count}, high, {buffer}.data(), {width});")
        loop = f"for (int64_t {name} = first; {name} < first + high; ++{name}) {{"
        return [*before, loop, *indented(inner), "}", *after]

    def _place(self, name: str, address: Address, group: Group) -> str:
        """Where a band begins in a tensor."""
        index: dict[Axis | None, str] = {axis: self.axis_name(axis) for axis in group.rows}
        index |= {self.band: "first", group.tile: "start"}
        terms = [self.scaled(text, address.terms[a]) for a, text in index.items() if a in address.terms]
        return " + ".join([name, *terms, *(self.mono(mono) for _, mono in address.rest)])

    def find_tables(self, group: Group) -> list[str]:
        """Choose the tables of a group; the lines that fill them."""
        rows = [*group.rows, *([group.tile] if group.tile else [])]
        fewest = FEWEST_ROWS * (group.tile.size.hint if group.tile else 1)
        chosen: dict[Expr, Axis] = {}
        for stage in group.stages:
            if len(stage.loops) == 1 and self.s.volume(rows) >= fewest:
                chosen |= dict.fromkeys(self._tables_of(stage), stage.loops[0])
        stems = {e: f"{self.names[x.data]}_table" if (x := _converted(e)) else "table" for e in chosen}
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
