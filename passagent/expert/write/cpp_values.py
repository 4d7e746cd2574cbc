"""Values and memory accesses of C++ kernels: expressions as text, named where they are used again."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

from passagent.expert.graph import words
from passagent.expert.lower.expressions import FLOATING, HALVES, Axis, Expr
from passagent.expert.lower.symbolic_sizes import Unsupported
from passagent.expert.schedule.stages import Address, Group, Stage
from passagent.expert.write import INFIX, Writer, bare, closed, literal, parenthesised

_PRELUDE = {"exp", "exp_added", "exp_below", "log10"}  # whose float32 form the prelude defines
FUNCTIONS = {**dict.fromkeys(("exp", "exp_added", "exp_below"), "exp"), "abs": "fabs"}
_SAME = words("log log2 log10 sqrt sin cos tanh erf log1p expm1 floor ceil rint pow fma copysign")
FUNCTIONS |= {name: name for name in _SAME}
_FORMS = {
    "neg": "-{0}", "not": "!{0}", "bits": "int64_t(__builtin_bit_cast(int32_t, {0}))", "as_half": "{0}",
    "relu": "{0} < 0 ? 0 : {0}", "index_clamp": "std::min<int64_t>(std::max<int64_t>({0}, 0), {1})",
}  # fmt: skip
_CALLED = frozenset(FUNCTIONS) - {"sqrt", "floor", "ceil", "rint", "abs", "fma", "copysign"}

BAND = 16
"""Rows turned at a time: what they share are whole cache lines of float32."""
_Written = TypeVar("_Written")


class Scope:
    """A nest of loops being written."""

    def __init__(self, axes: list[Axis]) -> None:
        self.axes, levels = axes, range(len(axes) + 1)
        self.lines: list[list[str]] = [[] for _ in levels]
        """Statements before each loop, and in the innermost one."""
        self.tails: list[list[str]] = [[] for _ in levels]
        """Statements after each loop."""
        self.names: list[dict[Expr, str]] = [{} for _ in levels]


class ValueWriter(Writer):
    """Writes expressions into the loops of the current stage."""

    blocked = heap = chooses = turns = False
    """The kernel needs the helpers of each kind: yes or no."""

    def begin_group(self, group: Group) -> None:
        """Make ready to write a group."""
        self.g = group
        self.buffers: list[tuple[str, str, str]] = []
        self.results: dict[Expr, str] = {}
        self.row = Scope([])
        self.buffered, self.tables, self.row_pointers = {}, {}, dict[str, str]()
        self.keeping, self.at = [set[Expr]()], 0
        self.band: Axis | None = None
        """The row axis that goes through memory one by one where the loops do not (BandWriter)."""
        self.turned: dict[Expr | int, str] = {}
        """Buffers of loads, and of stores (by id)."""

    def begin(self, stage: Stage) -> None:
        """Make ready to write a stage."""
        self.scope = Scope(stage.loops)
        self.clauses: dict[str, list[str]] = {}
        self.before_block: list[str] = []
        self.after_block: list[str] = []
        self.values_of, self.pointers = dict[str, str](), dict[str, str]()
        self.new_kept: dict[Expr, str] = {}

    def depth(self, e: Expr) -> int:
        """Loops of the stage that an expression needs; 0 outside all of them."""
        axes = self.s.axes(e.axes)
        return max((k + 1 for k, a in enumerate(self.scope.axes) if a in axes), default=0)

    def emit(self, e: Expr, depth: int) -> str:
        """Text of `e` for use at `depth`; shared and loop-invariant parts become named values."""
        own_depth = self.depth(e)
        names = self.scope.names[own_depth] if own_depth else self.row.names[0]
        if e in names:
            return names[e]
        if (leaf := self.leaf(e)) is not None:
            return f"({leaf})" if e.kind == "axis" else leaf
        if e.kind == "reduce":
            return self.result(e)
        if e in self.tables:
            return f"{self.tables[e]}[{self.index_text(self.scope.axes[-1])}]"
        if e in self.buffered:
            return f"{self.buffered[e]}[{self.offset(self.scope.axes, self.scope.axes)}]"
        text = self.load(e, own_depth) if e.kind == "load" else self.operation(e, own_depth)
        keep = e in self.keeping[self.at]
        if not keep:
            if text.isidentifier() or (e.kind == "load" and self.uses.get(e, 2) == 1):
                return text
            if self.uses.get(e, 2) == 1 and own_depth == depth and len(text) < 70 and e.data != "where":
                return text if closed(text) else f"({text})"
        name = text if text.isidentifier() else self.fresh(self.stem(e))
        if name != text:
            self.scope.lines[own_depth].append(f"const {self.vtype(e.dtype)} {name} = {bare(text)};")
        names[e] = name
        if keep:
            buffer = self.buffer(self.scope.axes, "float", "kept")
            place = self.offset(self.scope.axes, self.scope.axes)
            self.scope.lines[own_depth].append(f"{buffer}[{place}] = {name};")
            self.new_kept[e] = buffer
        return name

    def result(self, r: Expr) -> str:
        target = self.results[r]
        axes = self.s.sorted(self.s.axes(r.axes))
        loops = [a for a in axes if a in self.scope.axes or a not in self.g.rows]
        return f"{target}[{self.offset(loops, self.scope.axes)}]" if loops else target

    def operation(self, e: Expr, depth: int) -> str:
        if e.data == "where":
            test, a, b = [self.emit(x, depth) for x in e.args]
            if e.dtype in {*HALVES, "float32"} and any(self.calls(x) for x in e.args[1:]):
                self.chooses = True
                return f"either({', '.join(map(bare, (test, a, b)))})"
            return f"{test} ? {a} : {b}"
        args = [self.emit(a, depth) for a in e.args]
        if e.data in {"relu", "maximum", "minimum"} and (not closed(args[0]) or args[0].endswith(")")):
            first, text = e.args[0], bare(args[0])  # it is written more than once
            args[0] = self.fresh(self.stem(first))
            self.scope.lines[self.depth(first)].append(f"const {self.vtype(first.dtype)} {args[0]} = {text};")
        if e.data == "cast":
            return self.convert(args[0], e.args[0].dtype, e.dtype)
        if e.data in INFIX:
            return f"{args[0]} {INFIX[e.data]} {args[1]}"
        if e.data in _FORMS:
            return _FORMS[e.data].format(*args)
        if e.data in {"maximum", "minimum"}:
            return self.extreme(e, *args)
        if e.data in FUNCTIONS:
            name = f"{FUNCTIONS[e.data]}{'f' if e.dtype == 'float32' else ''}"
            name = f"{e.data}_f32" if e.data in _PRELUDE and e.dtype == "float32" else name
            return f"{name}({', '.join(map(bare, args))})"
        raise Unsupported(e.data, "has no C++ form")

    def extreme(self, e: Expr, a: str, b: str) -> str:
        """maximum or minimum. NaN stays. Of two zeros eager has the second one, beside a number the first."""
        above, below = (">", "<") if e.data == "maximum" else ("<", ">")
        bound = e.args[1]
        while bound.data in {"cast", "as_half"}:
            bound = bound.args[0]
        if e.dtype not in FLOATING or (bound.kind == "const" and not math.isnan(bound.data)):
            return f"{a} {below} {b} ? {b} : {a}"
        return f"(({a} {above} {b}) | ({a} != {a})) ? {a} : {b}"

    def calls(self, e: Expr) -> bool:
        """Tell whether a value is made, where it stands, with a function of the math library."""
        if e in self.buffered or e in self.tables or e.kind == "reduce":
            return False
        return e.data in _CALLED or any(self.calls(a) for a in e.args)

    def convert(self, text: str, source: str, target: str) -> str:
        if target in HALVES:
            text = text if self.vtype(source) == "float" else f"static_cast<float>({bare(text)})"
            return f"round_to<{self.ctype(target)}>({bare(text)})"
        if target == "bool":
            return f"({text} != 0)"
        ctype = self.ctype(target)
        if self.vtype(target) == "int64_t" and ctype != "int64_t":
            return f"static_cast<int64_t>(static_cast<{ctype}>({text}))"
        return text if self.vtype(source) == self.vtype(target) else f"static_cast<{ctype}>({text})"

    def number(self, value: float | int | bool, dtype: str) -> str:
        ctype = "double" if dtype == "float64" else "float"
        limits = f"std::numeric_limits<{ctype}>::"
        words = {"inf": f"{limits}infinity()", "-inf": f"-{limits}infinity()", "nan": f"{limits}quiet_NaN()"}
        return literal(value, dtype, words | {"True": "true", "False": "false"}, "f" * (ctype == "float"))

    def load(self, e: Expr, depth: int) -> str:
        name, address = self.names[e.data], self.s.addresses[e]
        self.inputs[e.data] = e.dtype
        if e in self.turned:
            return self.turned_element(e)
        if not self.walks(address) and depth == len(self.scope.axes) and self.apart(e.dtype):
            # An element of a block that is gathered before the loop.
            buffer, vtype = self.fresh(f"{name}_values"), self.vtype(e.dtype)
            lines, (element, _) = self.aside(lambda: self.pointer(name, e.dtype, address, const=True))
            self.before_block.append(f"{vtype} {buffer}[{self.plan.block}];")
            self.before_block += self.element_loop(
                [*lines, f"{buffer}[j] = static_cast<{vtype}>({element});"]
            )
            return f"{buffer}[j]"
        pointer, unit = self.pointer(name, e.dtype, address, const=True)
        if e.dtype in HALVES and unit:
            if pointer in self.values_of:
                return f"{self.values_of[pointer]}[j]"
            self.blocked = True
            buffer, row = self.fresh(f"{name}_buffer"), self.fresh(f"{name}_values")
            self.values_of[pointer] = row
            self.before_block.append(f"float {buffer}[{self.plan.block}];")
            self.before_block.append(f"const float* {row} = as_float({pointer} + start, {buffer}, count);")
            return f"{row}[j]"
        return f"static_cast<float>({pointer})" if e.dtype in HALVES else pointer

    def apart(self, dtype: str) -> bool:
        """Tell whether elements that do not lie side by side are moved in a loop of their own.

        There is no vector instruction for those of 8 and 16 bits: what computes would be scalar, too.
        """
        looped = bool(self.scope.axes) and not self.is_short(self.scope.axes[-1])
        return looped and dtype in {*HALVES, "bool", "int8", "uint8", "int16"}

    def element_loop(self, lines: list[str]) -> list[str]:
        """A loop over the elements of a block."""
        return ["for (int64_t j = 0; j < count; ++j) {", *indented(lines), "}"]

    def aside(self, write: Callable[[], _Written]) -> tuple[list[str], _Written]:
        """Call `write`. Return its statements of the innermost loop, taken out of there, and its result."""
        depth = len(self.scope.axes)
        lines, names = self.scope.lines[depth], self.scope.names[depth]
        self.scope.lines[depth], self.scope.names[depth] = [], {}
        written = write()
        statements = self.scope.lines[depth]
        self.scope.lines[depth], self.scope.names[depth] = lines, names
        return statements, written

    def walks(self, address: Address) -> bool:
        """Tell whether the innermost loop goes through memory element by element."""
        vector = self.scope.axes[-1] if self.scope.axes else None
        if vector is None or self.is_short(vector) or address.terms.get(vector) != (1, ()):
            return False
        return not any(e is not None and vector in self.s.axes(e.axes) for e, _ in address.rest)

    def pointer(self, name: str, dtype: str, address: Address, const: bool) -> tuple[str, bool]:
        """(row pointer, True) where the innermost loop walks memory one by one, else (element, False)."""
        vector = self.scope.axes[-1] if self.scope.axes else None
        unit = self.walks(address)
        level = len(self.scope.axes) - 1 if unit else len(self.scope.axes)
        terms = {a: mono for a, mono in address.terms.items() if not unit or a is not vector}
        where = self.sum_of(terms, address.rest)
        if not unit:
            return f"{name}[{where}]", False
        pointers = self.pointers if level else self.row_pointers
        key = f"{name} + {where}"
        row = name if where == "0" else pointers.get(key, "")
        if not row:
            row = pointers[key] = self.fresh(f"{name}_row")
            qualifier = "const " if const else ""
            self.scope.lines[level].append(f"{qualifier}{self.ctype(dtype)}* {row} = {name} + {where};")
        if dtype in HALVES:
            return row, True
        return f"{row}[start + j]", True

    def index_text(self, axis: Axis, relative: bool = False) -> str:
        """The index of an axis where the current statement stands."""
        if self.scope.axes and axis is self.scope.axes[-1]:
            alone = (relative and axis is self.g.tile) or self.is_short(axis)
            return "j" if alone else "start + j"
        return self.axis_name(axis)

    def offset(self, axes: list[Axis], loops: list[Axis]) -> str:
        """Position in a buffer over `axes`."""
        text = ""
        for axis in axes:
            here = self.index_text(axis, relative=True)
            text = here if not text else f"({text}) * {self.extent(axis)} + {here}"
        return text

    def extent(self, axis: Axis) -> str:
        return str(self.plan.block) if axis is self.g.tile else parenthesised(self.axis_size(axis))

    def is_short(self, axis: Axis) -> bool:
        """An innermost axis of a few elements whatever the shapes: a plain loop, which is unrolled."""
        text = str(axis.size)
        return axis is not self.g.tile and text.isdigit() and int(text) <= 8

    def buffer(self, axes: list[Axis], vtype: str, stem: str) -> str:
        name = self.fresh(stem)
        self.buffers.append((name, vtype, " * ".join(self.extent(a) for a in axes)))
        return name

    def turned_element(self, key: Expr | int) -> str:
        """The element of a turned tensor in the current loop."""
        assert self.band is not None
        vector = self.scope.axes[-1]
        at = self.index_text(vector, relative=True)
        return f"{self.turned[key]}[({self.axis_name(self.band)} - first) * {self._width(self.g)} + {at}]"

    def _width(self, group: Group) -> str:
        """Floats from row to row of a buffer: no power of two, or all rows would share a few cache sets."""
        return f"({self.extent(self._vector(group))} + {BAND})"

    def _vector(self, group: Group) -> Axis:
        return next(stage.loops[-1] for stage in group.stages if stage.loops)

    def nest(self, stage: Stage) -> list[str]:
        """The loops of a stage around what was written for them."""
        scope, depth = self.scope, len(stage.loops)
        if depth == 0:
            return [*scope.lines[0], *scope.tails[0]]
        vector = stage.loops[-1]
        body = scope.lines[depth]
        clause = "".join(f" reduction({op}:{', '.join(v)})" for op, v in self.clauses.items())
        block, is_short = self.plan.block, self.is_short(vector)
        n = self.axis_size(vector) if vector is not self.g.tile else ""
        inner = [f"#pragma omp simd{clause}", "for (int64_t j = 0; j < count; ++j) {", *indented(body), "}"]
        if is_short:
            inner = [f"for (int64_t j = 0; j < {n}; ++j) {{", *indented(body), "}"]
        inner = [*self.before_block, *(inner if body or is_short else []), *self.after_block]
        if vector is not self.g.tile and not is_short:
            inner = [
                f"for (int64_t start = 0; start < {n}; start += {block}) {{",
                f"  const int64_t count = std::min<int64_t>({block}, {n} - start);",
                *indented(inner),
                "}",
            ]
        elif not is_short and (self.before_block or self.after_block):
            inner = ["{", *indented(inner), "}"]
        lines = [*scope.lines[depth - 1], *inner, *scope.tails[depth - 1]]
        for level in reversed(range(depth - 1)):
            name, size = self.axis_name(stage.loops[level]), self.axis_size(stage.loops[level])
            loop = [f"for (int64_t {name} = 0; {name} < {size}; ++{name}) {{", *indented(lines), "}"]
            lines = [*scope.lines[level], *loop, *scope.tails[level]]
        return lines


def indented(lines: list[str]) -> list[str]:
    return [f"  {line}" for line in lines]
