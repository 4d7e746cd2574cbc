"""C++ kernels for the CPU target: a schedule as text, with OpenMP over rows and vectorised inner loops."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from passagent.models.expert.ir import Axis, Expr, Size, Unsupported
from passagent.models.expert.lowering import FLOATING, HALVES
from passagent.models.expert.schedule import Address, Group, Item, Mono, Schedule, Stage, Store

CTYPES = {"half": "T", "float16": "float16", "bfloat16": "bfloat16", "float32": "float", "float64": "double", "bool": "bool"}
"""C++ type of a dtype; integers are int64_t, int32_t, ..."""

VALUES = {**dict.fromkeys(HALVES, "float"), "float32": "float", "float64": "double", "bool": "bool"}
"""C++ type of a value in a register."""

FUNCTIONS = {"exp": "exp", "log": "log", "sqrt": "sqrt", "sin": "sin", "cos": "cos", "tanh": "tanh", "erf": "erf"}
FUNCTIONS |= {"log1p": "log1p", "expm1": "expm1", "floor": "floor", "ceil": "ceil", "pow": "pow", "abs": "fabs"}
FUNCTIONS |= {"fma": "fma"}
INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/", "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">"}
INFIX |= {"ge": ">=", "and": "&&", "or": "||", "index_add": "+", "index_mul": "*", "index_div": "/", "index_mod": "%"}

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


@dataclass
class Kernel:
    """A kernel's text and what to call it with, in order."""

    source: str
    name: str
    inputs: list[int]
    outputs: list[int]
    sizes: list[str]
    """Host expressions."""
    params: list[str]


@dataclass
class Knobs:
    """What a plan may choose."""

    block: int = 512
    """Elements of a row handled at a time."""
    grain: int = 16384
    """Elements below which one thread does it all."""
    keep: int = 4
    """Values of a row that cost this many operations are kept for later stages, not computed again; 0: none."""


def generate(schedule: Schedule, name: str, names: list[str], outputs: list[str], knobs: Knobs) -> Kernel:
    """The C++ kernel of a schedule; `names` are of the inputs, `outputs` of (name, dtype) pairs in text."""
    return _Writer(schedule, name, names, outputs, knobs).kernel()


@dataclass
class _Scope:
    """A nest of loops being written."""

    axes: list[Axis]
    lines: list[list[str]]
    """Statements before each loop, and in the innermost one."""
    tails: list[list[str]]
    """Statements after each loop."""
    names: list[dict[Expr, str]]


class _Writer:
    def __init__(self, schedule: Schedule, name: str, names: list[str], outputs: list[str], knobs: Knobs) -> None:
        self.s, self.name, self.names, self.knobs = schedule, name, names, knobs
        self.outputs = outputs
        self.sizes: dict[str, str] = {}
        self.params: dict[str, None] = {}
        self.inputs: dict[int, str] = {}
        self.counts: dict[str, int] = {}
        self.blocked = self.heap = False

    # names and sizes

    def fresh(self, stem: str) -> str:
        self.counts[stem] = self.counts.get(stem, 0) + 1
        return stem if self.counts[stem] == 1 else f"{stem}{self.counts[stem]}"

    def size(self, text: str) -> str:
        if text not in self.sizes:
            self.sizes[text] = f"n{len(self.sizes)}"
        return self.sizes[text]

    def mono(self, mono: Mono) -> str:
        parts = [self.size(t) for t in mono[1]]
        if mono[0] != 1 or not parts:
            parts.append(str(mono[0]))
        return " * ".join(parts)

    def axis_size(self, axis: Axis) -> str:
        return self.mono(self.s.mono(axis.size))

    def axis_name(self, axis: Axis) -> str:
        return f"i{self.s.order.index(axis)}"

    # the kernel

    def kernel(self) -> Kernel:
        bodies = [self.group(g) for g in self.s.groups]
        types = {store.out: store.expr.dtype for store in self.s.stores}
        arguments = [f"const {self.ctype(d)}* {n}" for n, d in self.input_types()]
        arguments += [f"{self.ctype(types[k])}* {n}" for k, n in enumerate(self.outputs)]
        arguments += [f"int64_t {n}" for n in self.sizes.values()]
        arguments += [f"double {n}" for n in self.params]
        template = "template <class T>\n" if any("T*" in a for a in arguments) else ""
        signature = f"{template}void {self.name}({', '.join(arguments)}) {{"
        text = "\n".join([signature, *[line for body in bodies for line in body], "}"])
        helpers = "#include <vector>\n\n" if self.heap else ""
        helpers += HELPERS + "\n" if self.blocked else ""
        inputs = sorted(self.inputs)
        return Kernel(
            (helpers + text + "\n"), self.name, inputs, list(range(len(self.outputs))), list(self.sizes), list(self.params)
        )

    def input_types(self) -> list[tuple[str, str]]:
        return [(self.names[k], self.inputs[k]) for k in sorted(self.inputs)]

    def ctype(self, dtype: str) -> str:
        return CTYPES.get(dtype, f"{dtype}_t")

    def vtype(self, dtype: str) -> str:
        return VALUES.get(dtype, "int64_t")

    # groups

    def group(self, group: Group) -> list[str]:
        self.g = group
        self.buffers: list[tuple[str, str, str]] = []
        self.results: dict[Expr, str] = {}
        self.row = _Scope([], [[]], [[]], [{}])
        self.kept: dict[Expr, str] = {}
        self.row_pointers: dict[str, str] = {}
        self.keeping = [self.to_keep(group, k) for k in range(len(group.stages))]
        stages = [self.stage(s, k) for k, s in enumerate(group.stages)]
        rows = [self.axis_size(a) for a in group.rows]
        head: list[str] = []
        if group.tile is not None:
            n = self.axis_size(group.tile)
            head.append(f"const int64_t tiles = ({n} + {self.knobs.block - 1}) / {self.knobs.block};")
            rows = [*rows, "tiles"]
        total = " * ".join(rows) or "1"
        work = " * ".join(dict.fromkeys([*[self.axis_size(a) for a in self._all(group)]])) or "1"
        inner: list[str] = []
        if group.rows or group.tile is not None:
            inner += self.decode(group)
        inner += self.row.lines[0]
        for lines in stages:
            inner += lines
        parallel = bool(rows)
        if not parallel:
            body = [*self.declared(), *inner]
            return [*_indent(head), *(_indent(["{", *_indent(body), "}"]) if len(self.s.groups) > 1 else _indent(body))]
        loop = [f"for (int64_t row = 0; row < rows; ++row) {{", *_indent(inner), "}"]
        head.append(f"const int64_t rows = {total};")
        condition = f"if ({work} > {self.knobs.grain})"
        if self.buffers:
            made = self.declared()
            body = [f"#pragma omp parallel {condition}", "{", *_indent([*made, "#pragma omp for", *loop]), "}"]
        else:
            body = [f"#pragma omp parallel for {condition}", *loop]
        lines = [*head, *body]
        return _indent(["{", *_indent(lines), "}"] if len(self.s.groups) > 1 else lines)

    def declared(self) -> list[str]:
        """Buffers: of a known size on the stack, else on the heap, one for each thread."""
        self.heap = self.heap or any(not c.isdigit() for _, _, c in self.buffers)
        return [f"{t} {n}[{c}];" if c.isdigit() else f"std::vector<{t}> {n}({c});" for n, t, c in self.buffers]

    def _all(self, group: Group) -> list[Axis]:
        best: list[Axis] = []
        for stage in group.stages:
            axes = [*group.rows, *stage.loops]
            if self.s.volume(axes) > self.s.volume(best):
                best = axes
        return best

    def decode(self, group: Group) -> list[str]:
        """The indices of a row from its number."""
        lines, left = [], "row"
        parts: list[tuple[str, str]] = [(self.axis_name(a), self.axis_size(a)) for a in group.rows]
        if group.tile is not None:
            parts.append(("tile", "tiles"))
        for position, (name, size) in enumerate(reversed(parts)):
            last = position == len(parts) - 1
            value = left if last else f"{left} % {_paren(size)}"
            lines.append(f"const int64_t {name} = {value};")
            left = f"{left} / {_paren(size)}" if left == "row" else f"{left} / {_paren(size)}"
        if group.tile is not None:
            n = self.axis_size(group.tile)
            lines.append(f"const int64_t start = tile * {self.knobs.block};")
            lines.append(f"const int64_t count = std::min<int64_t>({self.knobs.block}, {n} - start);")
        return lines

    # stages

    def to_keep(self, group: Group, number: int) -> set[Expr]:
        """Costly values of stage `number` that a later stage over the same loops needs again."""
        stage = group.stages[number]
        if not self.knobs.keep or not stage.loops or self.s.volume(stage.loops) > 65536:
            return set()
        here = self.values(stage, set())
        chosen: set[Expr] = set()
        for later in group.stages[number + 1 :]:
            if later.loops == stage.loops:
                chosen |= self.highest(later, here, stage.loops[-1])
        return chosen

    def values(self, stage: Stage, found: set[Expr]) -> set[Expr]:
        def walk(e: Expr) -> None:
            if e not in found and e.kind != "reduce":
                found.add(e)
                for a in e.args:
                    walk(a)

        for item in stage.items:
            walk(item.expr if isinstance(item, Store) else item.args[0])
        return found

    def highest(self, stage: Stage, among: set[Expr], vector: Axis) -> set[Expr]:
        """The largest expressions of a stage that are `among` others, vary along `vector` and are worth keeping."""
        chosen: set[Expr] = set()
        seen: set[Expr] = set()

        def walk(e: Expr) -> None:
            if e in seen or e.kind == "reduce":
                return
            seen.add(e)
            if e in among and vector in self.s.axes(e.axes) and e.dtype in {*HALVES, "float32"}:
                if _cost(e, set()) >= self.knobs.keep:
                    chosen.add(e)
                return
            for a in e.args:
                walk(a)

        for item in stage.items:
            walk(item.expr if isinstance(item, Store) else item.args[0])
        return chosen

    def count_uses(self, stage: Stage) -> None:
        """How often each value is asked for in a stage: what is used once is written in place."""
        self.uses: dict[Expr, int] = {}

        def walk(e: Expr) -> None:
            self.uses[e] = self.uses.get(e, 0) + 1
            if self.uses[e] == 1 and e.kind != "reduce" and e not in self.kept:
                for a in e.args:
                    walk(a)

        for item in stage.items:
            walk(item.expr if isinstance(item, Store) else item.args[0])

    def stage(self, stage: Stage, number: int) -> list[str]:
        depth = len(stage.loops)
        self.count_uses(stage)
        self.number = number
        self.scope = _Scope(
            stage.loops, [[] for _ in range(depth + 1)], [[] for _ in range(depth + 1)], [{} for _ in range(depth + 1)]
        )
        self.clauses: dict[str, list[str]] = {}
        self.before_block: list[str] = []
        self.values_of: dict[str, str] = {}
        self.after_block: list[str] = []
        self.pointers: dict[str, str] = {}
        self.new_kept: dict[Expr, str] = {}
        for item in stage.items:
            if isinstance(item, Store):
                self.store(item)
            else:
                self.reduction(item)
        self.kept.update(self.new_kept)
        return self.nest(stage)

    def nest(self, stage: Stage) -> list[str]:
        """The loops of a stage around what was written for them."""
        scope, depth = self.scope, len(stage.loops)
        if depth == 0:
            return [*scope.lines[0], *scope.tails[0]]
        vector = stage.loops[-1]
        body = scope.lines[depth]
        clause = "".join(f" reduction({op}:{', '.join(v)})" for op, v in self.clauses.items())
        inner = [f"#pragma omp simd{clause}", "for (int64_t j = 0; j < count; ++j) {", *_indent(body), "}"]
        inner = [*self.before_block, *inner, *self.after_block]
        if vector is not self.g.tile:
            n = self.axis_size(vector)
            block = self.knobs.block
            inner = [
                f"for (int64_t start = 0; start < {n}; start += {block}) {{",
                f"  const int64_t count = std::min<int64_t>({block}, {n} - start);",
                *_indent(inner),
                "}",
            ]
        elif self.before_block or self.after_block:
            inner = ["{", *_indent(inner), "}"]
        lines = [*scope.lines[depth - 1], *inner, *scope.tails[depth - 1]]
        for level in range(depth - 2, -1, -1):
            axis = stage.loops[level]
            name = self.axis_name(axis)
            loop = [f"for (int64_t {name} = 0; {name} < {self.axis_size(axis)}; ++{name}) {{", *_indent(lines), "}"]
            lines = [*scope.lines[level], *loop, *scope.tails[level]]
        return lines

    def depth(self, e: Expr) -> int:
        """Loops of the stage that an expression needs; 0 outside all of them."""
        axes = self.s.axes(e.axes)
        return max((k + 1 for k, a in enumerate(self.scope.axes) if a in axes), default=0)

    # stores and reductions

    def store(self, store: Store) -> None:
        depth = len(self.scope.axes)
        address = self.s.addresses[id(store)]
        value = self.emit(self._unrounded(store), depth)
        name, dtype = self.outputs[store.out], store.expr.dtype
        pointer, unit = self.pointer(id(store), name, dtype, address, const=False)
        if dtype in HALVES and unit:
            self.blocked = True
            buffer, row = self.fresh(f"{name}_buffer"), self.fresh(f"{name}_values")
            self.before_block += [f"float {buffer}[{self.knobs.block}];", f"float* {row} = room({pointer} + start, {buffer});"]
            self.after_block.append(f"put({pointer} + start, {row}, count);")
            self.scope.lines[depth].append(f"{row}[j] = {value};")
        else:
            self.scope.lines[depth].append(f"{pointer} = {value};")

    def _unrounded(self, store: Store) -> Expr:
        """A store to a 16-bit type rounds: what is only stored need not be rounded before."""
        e = store.expr
        return e.args[0] if e.data == "cast" and e.dtype in HALVES and self.uses.get(e) == 1 else e

    def reduction(self, r: Expr) -> None:
        name, bound = r.data
        loops = self.scope.axes
        body = self.emit(r.args[0], len(loops))
        kind, vtype = ("max" if name in {"max", "softmax_max"} else name), self.vtype(r.dtype)
        start = {"sum": "0", "max": f"-std::numeric_limits<{vtype}>::infinity()", "min": f"std::numeric_limits<{vtype}>::infinity()"}[kind]
        if vtype == "int64_t" and kind != "sum":
            start = f"std::numeric_limits<int64_t>::{'lowest' if kind == 'max' else 'max'}()"
        stem = {"softmax_max": "top"}.get(name, name)
        target = self.fresh(stem)
        bound_axes = self.s.axes(bound)
        free = [a for a in loops if a not in bound_axes]
        inner_free = [a for k, a in enumerate(loops) if a in free and any(b in bound_axes for b in loops[:k])]
        if not loops:
            self.scope.lines[0].append(f"const {vtype} {target} = {body};")
            self.results[r] = target
            return
        if not inner_free:
            level = len(free)
            part = self.fresh(f"{stem}_part")
            self.scope.lines[level].append(f"{vtype} {target} = {start};")
            self.before_block.append(f"{vtype} {part} = {start};")
            op = {"sum": "+"}.get(kind, kind)
            self.clauses.setdefault(op, []).append(part)
            self.scope.lines[len(loops)].append(self.update(kind, part, body, name))
            self.after_block.append(self.update(kind, target, part, name))
            if free:
                buffer = self.buffer(free, vtype, f"{stem}s")
                self.scope.tails[level].append(f"{buffer}[{self.offset(free, free)}] = {target};")
                self.results[r] = buffer
            else:
                self.results[r] = target
            return
        buffer = self.buffer(free, vtype, f"{stem}s")
        size = " * ".join(self.extent(a) for a in free)
        self.scope.lines[0].append(f"std::fill_n(&{buffer}[0], {size}, {vtype}({start}));")
        self.scope.lines[len(loops)].append(self.update(kind, f"{buffer}[{self.offset(free, loops)}]", body, name))
        self.results[r] = buffer

    def update(self, kind: str, target: str, body: str, name: str) -> str:
        if kind == "sum":
            return f"{target} += {body};"
        sign = ">" if kind == "max" else "<"
        value = self.fresh("v")
        test = f"{value} {sign} {target}"
        if name != "softmax_max":
            test = f"({test}) | ({value} != {value})"  # NaN stays
        return f"{{ const auto {value} = {body}; {target} = ({test}) ? {value} : {target}; }}"

    def extent(self, axis: Axis) -> str:
        return str(self.knobs.block) if axis is self.g.tile else _paren(self.axis_size(axis))

    def buffer(self, axes: list[Axis], vtype: str, stem: str) -> str:
        name = self.fresh(stem)
        self.buffers.append((name, vtype, " * ".join(self.extent(a) for a in axes)))
        return name

    def offset(self, axes: list[Axis], loops: list[Axis]) -> str:
        """Position in a buffer over `axes`."""
        text = ""
        for axis in axes:
            here = self.index_text(axis, relative=True)
            text = here if not text else f"({text}) * {self.extent(axis)} + {here}"
        return text

    def index_text(self, axis: Axis, relative: bool = False) -> str:
        """The index of an axis where the current statement stands."""
        if self.scope.axes and axis is self.scope.axes[-1]:
            return "j" if relative and axis is self.g.tile else "start + j"
        return self.axis_name(axis)

    # expressions

    def emit(self, e: Expr, depth: int) -> str:
        """Text of `e` for use at `depth`; shared and loop-invariant parts become named values."""
        own = self.depth(e)
        names = self.scope.names[own] if own else self.row.names[0]
        if e in names:
            return names[e]
        if e.kind == "const":
            return self.literal(e.data, e.dtype)
        if e.kind == "size":
            return _paren(self.mono(self.s._atoms(e.data)))
        if e.kind == "param":
            self.params[e.data] = None
            return e.data
        if e.kind == "axis":
            return f"({self.index_text(next(iter(self.s.axes([e.data]))))})"
        if e.kind == "reduce":
            return self.result(e)
        if e in self.kept:
            return f"{self.kept[e]}[{self.offset(self.scope.axes, self.scope.axes)}]"
        text = self.load(e, own) if e.kind == "load" else self.operation(e, own)
        keep = e in self.keeping[self.number]
        if not keep:
            if text.isidentifier() or (e.kind == "load" and self.uses.get(e, 2) == 1):
                return text
            if self.uses.get(e, 2) == 1 and own == depth and len(text) < 70 and e.data != "where":
                return text if _closed(text) else f"({text})"
        name = self.fresh(self.stem(e))
        self.scope.lines[own].append(f"const {self.vtype(e.dtype)} {name} = {text};")
        names[e] = name
        if keep:
            buffer = self.buffer(self.scope.axes, "float", "kept")
            self.scope.lines[own].append(f"{buffer}[{self.offset(self.scope.axes, self.scope.axes)}] = {name};")
            self.new_kept[e] = buffer
        return name

    def named(self, e: Expr, text: str, depth: int) -> str:
        """A name for an operand that is written more than once."""
        if _closed(text) and not text.endswith(")"):
            return text
        name = self.fresh(self.stem(e))
        self.scope.lines[self.depth(e)].append(f"const {self.vtype(e.dtype)} {name} = {text};")
        return name

    def stem(self, e: Expr) -> str:
        if e.kind == "load":
            return f"{self.names[e.data]}_v"
        return {"where": "picked", "exp": "power", "cast": "v", "as_half": "v"}.get(e.data, "v")

    def result(self, r: Expr) -> str:
        target = self.results[r]
        loops = [a for a in self.s.sorted(self.s.axes(r.axes)) if a in self.scope.axes or a not in self.g.rows]
        return f"{target}[{self.offset(loops, self.scope.axes)}]" if loops else target

    def operation(self, e: Expr, depth: int) -> str:
        if e.data == "where":
            test, a, b = [self.emit(x, depth) for x in e.args]
            return f"{test} ? {a} : {b}"
        args = [self.emit(a, depth) for a in e.args]
        if e.data in {"relu", "maximum", "minimum"}:
            args[0] = self.named(e.args[0], args[0], depth)
        if e.data == "cast":
            return self.convert(args[0], e.args[0].dtype, e.dtype)
        if e.data == "as_half":
            return args[0]
        if e.data in INFIX:
            return f"{args[0]} {INFIX[e.data]} {args[1]}"
        if e.data == "neg":
            return f"-{args[0]}"
        if e.data == "not":
            return f"!{args[0]}"
        if e.data == "relu":
            return f"{args[0]} < 0 ? 0 : {args[0]}"
        if e.data in {"maximum", "minimum"}:
            sign = ">" if e.data == "maximum" else "<"
            if e.dtype not in FLOATING or e.args[1].kind == "const":
                sign = "<" if e.data == "maximum" else ">"
                return f"{args[0]} {sign} {args[1]} ? {args[1]} : {args[0]}"
            return f"(({args[0]} {sign} {args[1]}) | ({args[0]} != {args[0]})) ? {args[0]} : {args[1]}"
        if e.data == "index_clamp":
            return f"std::min<int64_t>(std::max<int64_t>({args[0]}, 0), {args[1]})"
        if e.data in FUNCTIONS:
            suffix = "f" if e.dtype == "float32" else ""
            return f"{FUNCTIONS[e.data]}{suffix}({', '.join(args)})"
        raise Unsupported(e.data, "has no C++ form")

    def convert(self, text: str, source: str, target: str) -> str:
        if target in HALVES:
            text = text if self.vtype(source) == "float" else f"static_cast<float>({text})"
            return f"round_to<{self.ctype(target)}>({text})"
        if target == "bool":
            return f"({text} != 0)"
        if self.vtype(source) == self.vtype(target) and source != target and self.vtype(target) != "int64_t":
            return text
        ctype = self.ctype(target)
        if self.vtype(target) == "int64_t" and ctype != "int64_t":
            return f"static_cast<int64_t>(static_cast<{ctype}>({text}))"
        return text if self.vtype(source) == self.vtype(target) else f"static_cast<{ctype}>({text})"

    def literal(self, value: float | int | bool, dtype: str) -> str:
        if dtype == "bool":
            return "true" if value else "false"
        if dtype not in FLOATING:
            return str(int(value))
        ctype = "double" if dtype == "float64" else "float"
        if math.isinf(value):
            return f"{'-' if value < 0 else ''}std::numeric_limits<{ctype}>::infinity()"
        if math.isnan(value):
            return f"std::numeric_limits<{ctype}>::quiet_NaN()"
        text = repr(float(value))
        if dtype != "float64" and abs(value) > 3.4028234663852886e38:
            return f"{'-' if value < 0 else ''}std::numeric_limits<float>::infinity()"
        text = text if dtype == "float64" else f"{text}f"
        return f"({text})" if value < 0 else text

    # memory

    def load(self, e: Expr, depth: int) -> str:
        name, address = self.names[e.data], self.s.addresses[e]
        self.inputs[e.data] = e.dtype
        pointer, unit = self.pointer(e, name, e.dtype, address, const=True)
        if e.dtype in HALVES and unit:
            self.blocked = True
            if pointer in self.values_of:
                return f"{self.values_of[pointer]}[j]"
            buffer, row = self.fresh(f"{name}_buffer"), self.fresh(f"{name}_values")
            self.values_of[pointer] = row
            self.before_block += [
                f"float {buffer}[{self.knobs.block}];",
                f"const float* {row} = as_float({pointer} + start, {buffer}, count);",
            ]
            return f"{row}[j]"
        return f"static_cast<float>({pointer})" if e.dtype in HALVES else pointer

    def pointer(self, key: Any, name: str, dtype: str, address: Address, const: bool) -> tuple[str, bool]:
        """(row pointer, True) where the innermost loop walks memory element by element, else (element, False)."""
        vector = self.scope.axes[-1] if self.scope.axes else None
        opaque = any(e is not None and vector in self.s.axes(e.axes) for e, _ in address.rest) if vector else True
        unit = vector is not None and address.terms.get(vector) == (1, ()) and not opaque
        level = len(self.scope.axes) - 1 if unit else len(self.scope.axes)
        parts = []
        for axis, mono in sorted(address.terms.items(), key=lambda kv: self.s.order.index(kv[0])):
            if unit and axis is vector:
                continue
            parts.append(self.scaled(self.index_text(axis), mono))
        for e, mono in address.rest:
            if e is None:
                parts.append(self.mono(mono))
            else:
                parts.append(self.scaled(self.emit(e, self.depth(e)), mono))
        where = " + ".join(parts) or "0"
        if not unit:
            return f"{name}[{where}]", False
        level_key = f"{name} + {where}"
        if where == "0":
            row = name
        elif level == 0 and level_key in self.row_pointers:
            row = self.row_pointers[level_key]
        elif level_key in self.pointers:
            row = self.pointers[level_key]
        else:
            row = self.fresh(f"{name}_row")
            (self.row_pointers if level == 0 else self.pointers)[level_key] = row
            qualifier = "const " if const else ""
            self.scope.lines[level].append(f"{qualifier}{self.ctype(dtype)}* {row} = {name} + {where};")
        if dtype in HALVES:
            return row, True
        return f"{row}[start + j]", True

    def scaled(self, index: str, mono: Mono) -> str:
        if mono == (1, ()):
            return index
        index = index if index.isidentifier() or index.startswith("(") else f"({index})"
        return f"{index} * {self.mono(mono)}" if mono[0] == 1 or not mono[1] else f"{index} * {self.mono(mono)}"


def _indent(lines: list[str]) -> list[str]:
    return [line if line.startswith("#pragma") and False else f"  {line}" for line in lines]


def _paren(text: str) -> str:
    return f"({text})" if " " in text else text


def _closed(text: str) -> bool:
    """Whether an operand needs no parentheses: a name, a number, a call, an element."""
    depth = 0
    for k, c in enumerate(text):
        depth += (c in "([") - (c in ")]")
        if depth == 0 and (c in " ?" or (c == "-" and k == 0)):
            return False
    return True


_COSTS = {"exp": 8, "log": 8, "tanh": 10, "erf": 10, "sin": 8, "cos": 8, "pow": 20, "log1p": 8, "expm1": 8, "div": 3, "sqrt": 3}


def _cost(e: Expr, seen: set[Expr]) -> int:
    """Rough operations that computing `e` takes."""
    if e in seen or e.kind in {"const", "size", "param", "axis", "reduce"}:
        return 0
    seen.add(e)
    own = (2 if e.dtype in HALVES else 1) if e.kind != "op" or e.data != "cast" else (4 if e.dtype in HALVES else 0)
    return _COSTS.get(e.data, own) + sum(_cost(a, seen) for a in e.args) if e.kind == "op" else own


@contextmanager
def _nothing() -> Iterator[None]:
    yield


_ = (field, Item, Size, _nothing)
