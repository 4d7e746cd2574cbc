"""Triton kernels for the CUDA target: a group of a schedule is one kernel.

A program handles ROWS rows with BLOCK lanes over the innermost axis, so short rows share a program. Values
that vary along the innermost axis are (ROWS, BLOCK) tensors, values of a row (ROWS, 1).
"""

from __future__ import annotations

import math
import re

from passagent.models.expert.ir import Axis, Expr, Unsupported
from passagent.models.expert.lowering import FLOATING, HALVES
from passagent.models.expert.schedule import Address, Group, Mono, Schedule, Stage, Store
from passagent.models.expert.writer import INFIX, Knobs, Part, TritonKernel, Writer, closed

LONGEST = 65536
"""Lanes of a program, at most."""

TYPES = {
    "float32": "tl.float32",
    "float64": "tl.float64",
    "bool": "tl.int1",
    "int64": "tl.int64",
    "int32": "tl.int32",
}
TYPES |= {"int16": "tl.int16", "int8": "tl.int8", "uint8": "tl.uint8"}

_FORMS = {
    "neg": "-{0}",
    "not": "({0} == 0)",
    "relu": "tl.where(({0}) < 0, 0.0, {0})",
    "index_clamp": "tl.minimum(tl.maximum({0}, 0), {1})",
    "fma": "{0} * {1} + {2}",
    "exp": "tl.exp({0})",
    "log": "tl.log({0})",
    "sqrt": "tl.sqrt({0})",
    "sin": "tl.sin({0})",
    "cos": "tl.cos({0})",
    "erf": "tl.erf({0})",
    "abs": "tl.abs({0})",
    "floor": "tl.floor({0})",
    "ceil": "tl.ceil({0})",
    "tanh": "2.0 / (1.0 + tl.exp(-2.0 * {0})) - 1.0",
    "log1p": "tl.log(1.0 + {0})",
    "expm1": "tl.exp({0}) - 1.0",
}
"""Operations that are neither infix nor a choice."""


def generate(
    schedule: Schedule,
    name: str,
    names: list[str],
    outputs: list[str],
    shapes: list[list[str]],
    parameters: list[str],
) -> TritonKernel:
    """One Triton kernel for all groups of a schedule: where there are several, programs share out among them.

    `shapes` are host expressions of the outputs' sizes: of the inputs and the pattern's `parameters` those
    that they or the guards speak of are arguments, too.
    """
    parts, sizes, params = [], dict[str, str](), dict[str, None]()
    inputs: dict[int, str] = {}
    for number, group in enumerate(schedule.groups):
        own = name if len(schedule.groups) == 1 else f"{name}_part{number + 1}"
        writer = TritonWriter(schedule, own, names, outputs, Knobs())
        writer.sizes, writer.params, writer.inputs = sizes, params, inputs
        parts.append(writer.part(group, alone=len(schedule.groups) == 1))
    said = " ".join(
        [
            *(t for s in shapes for t in s),
            *schedule.trace.guards,
            *sizes,
            *(t for p in parts for t in [*p.rows, p.lanes]),
        ]
    )
    used = [k for k in range(len(names)) if k in inputs or re.search(rf"\bs{k}\b", said)]
    params.update((p, None) for p in parameters if re.search(rf"\b{p}\b", said))
    arguments = [*[names[k] for k in used], *params, *outputs, *sizes.values()]
    return TritonKernel(
        _source(name, parts, arguments),
        name,
        used,
        list(range(len(outputs))),
        list(sizes),
        list(params),
        parts,
    )


def _source(name: str, parts: list[Part], arguments: list[str]) -> str:
    if len(parts) == 1:
        return parts[0].text("triton.jit", [*arguments, *parts[0].numbers("")])
    texts, numbers = [], list[str]()
    lines, left = ["    program = tl.program_id(0)"], "program"
    for k, part in enumerate(parts):
        own = part.numbers(str(k + 1))
        numbers += [f"programs{k + 1}", *own] if k < len(parts) - 1 else own
        texts.append(part.text("triton.jit", ["program", *arguments, *part.numbers("")]))
        given = ", ".join([left, *arguments, *(n.partition(":")[0] for n in own)])
        test = "else:" if k == len(parts) - 1 else f"{'if' if k == 0 else 'elif'} {left} < programs{k + 1}:"
        lines += [f"    {test}", f"        {part.name}({given})"]
        left = f"{left} - programs{k + 1}"
    constants = sorted(numbers, key=lambda n: ":" in n)
    head = ["@triton.jit", f"def {name}({', '.join([*arguments, *constants])}):"]
    return "\n\n\n".join([*texts, "\n".join([*head, *lines])])


class TritonWriter(Writer):
    def part(self, group: Group, alone: bool) -> Part:
        """The code of a group: the kernel itself where it is `alone`, else a function of its program."""
        self.g = group
        self.lines: list[str] = []
        self.indent = 1
        self.cached: dict[Expr, str] = {}
        self.scopes: list[dict[Expr, str]] = [self.cached]
        self.results: dict[Expr, str] = {}
        self.vectors: list[Axis] = [s.loops[-1] for s in group.stages if s.loops]
        self.vector = group.tile or (self.vectors[0] if self.vectors else None)
        if any(v is not self.vector for v in self.vectors):
            raise Unsupported("schedule", "stages of one row run along different axes")
        if self.vector is not None and group.tile is None and self.vector.size.hint > LONGEST:
            raise Unsupported("schedule", f"rows of {self.vector.size.hint} elements do not fit in a program")
        stores = [item for stage in group.stages for item in stage.items if isinstance(item, Store)]
        self.flat = (
            group.tile is not None
            and not group.rows
            and len(stores) == sum(len(stage.items) for stage in group.stages)
            and all(group.tile in self.s.store_axes(store) for store in stores)
        )
        self.one = "(1,)" if self.flat else "(1, 1)"
        self.types = {store.out: store.expr.dtype for store in self.s.stores}
        self.generic = next(
            (n for n in (self.names[e.data] for e in self._loads(group) if e.dtype == "half")), None
        )
        self.prologue(group, "tl.program_id(0)" if alone else "program")
        for number, stage in enumerate(group.stages):
            self.number = number
            self.stage_lines(stage)
        rows = [self._host(a) for a in group.rows]
        lanes = self._host(self.vector) if self.vector is not None else "1"
        return Part(self.name, self.lines, rows, lanes, group.tile is not None, self.flat)

    def _host(self, axis: Axis) -> str:
        return self.s.trace.text(axis.size)

    def _loads(self, group: Group) -> list[Expr]:
        found: dict[Expr, None] = {}
        seen: set[Expr] = set()

        def walk(e: Expr) -> None:
            if e not in seen:
                seen.add(e)
                if e.kind == "load":
                    found[e] = None
                for a in e.args:
                    walk(a)

        for stage in group.stages:
            for item in stage.items:
                walk(item.expr if isinstance(item, Store) else item)
                if isinstance(item, Store):
                    for i in item.index:
                        walk(i)
        return list(found)

    def line(self, text: str) -> None:
        self.lines.append("    " * self.indent + text)

    def prologue(self, group: Group, program: str) -> None:
        if self.flat and group.tile is not None:
            self.line(f"lane = {program} * BLOCK + tl.arange(0, BLOCK)")
            self.line(f"inside = lane < {self.axis_size(group.tile)}")
            return
        self.line(f"row = {program} * ROWS + tl.arange(0, ROWS)[:, None]")
        parts = [(self.axis_name(a), self.axis_size(a)) for a in group.rows]
        if group.tile is not None:
            self.line(f"tiles = tl.cdiv({self.axis_size(group.tile)}, BLOCK)")
            parts.append(("tile", "tiles"))
        left = "row"
        for position, (name, size) in enumerate(reversed(parts)):
            last = position == len(parts) - 1
            self.line(f"{name} = {left}" if last else f"{name} = {left} % {size}")
            left = f"{left} // {size}" if position == 0 else f"({left}) // {size}"
        if group.tile is not None:
            self.line("lane = tile * BLOCK + tl.arange(0, BLOCK)[None, :]")
        elif self.vector is not None:
            self.line("lane = tl.arange(0, BLOCK)[None, :]")
        if self.vector is not None:
            self.line(f"inside = (row < rows) & (lane < {self.axis_size(self.vector)})")

    def mono(self, mono: Mono) -> str:
        """A product of sizes is one number, computed on the host: Triton sees what divides it."""
        if not mono[1]:
            return str(mono[0])
        factors = [*([] if mono[0] == 1 else [str(mono[0])]), *mono[1]]
        return self.size(" * ".join(factors))

    # stages

    def stage_lines(self, stage: Stage) -> None:
        self.count_uses(stage)
        self.loops = stage.loops
        outer = stage.loops[:-1]
        plain = not outer
        starts: list[tuple[Expr, str, str]] = []
        for item in stage.items:
            if not isinstance(item, Store):
                starts.append((item, *self.start(item, stage)))
        for _, target, initial in starts:
            if not plain:
                self.line(f"{target} = {initial}")
        for axis in outer:
            self.line(f"for {self.axis_name(axis)} in range({self.axis_size(axis)}):")
            self.indent += 1
        if not plain:
            self.scopes.append({})
        for item in stage.items:
            if isinstance(item, Store):
                self.store_lines(item)
            else:
                target = next(t for r, t, _ in starts if r is item)
                self.reduce_lines(item, target, plain)
        if not plain:
            self.scopes.pop()
        self.indent -= len(outer)

    def start(self, r: Expr, stage: Stage) -> tuple[str, str]:
        name, bound = r.data
        bound_axes = self.s.axes(bound)
        free = [a for a in stage.loops if a not in bound_axes]
        if any(a is not self.vector for a in free):
            raise Unsupported("schedule", "a reduction that keeps an inner axis")
        stem = {"softmax_max": "top"}.get(name, name)
        target = self.fresh(f"{stem}_v")
        lanes = "BLOCK" if free else "1"
        kind = self.vtype(r.dtype)
        dtype = {"float": "tl.float32", "double": "tl.float64", "int64_t": "tl.int64"}[kind]
        value = {"sum": "0", "max": 'float("-inf")', "softmax_max": 'float("-inf")', "min": 'float("inf")'}[
            name
        ]
        if kind == "int64_t" and name != "sum":
            raise Unsupported(name, "of integers")
        self.results[r] = target
        return target, f"tl.full((ROWS, {lanes}), {value}, {dtype})"

    def reduce_lines(self, r: Expr, target: str, plain: bool) -> None:
        name, bound = r.data
        bound_axes = self.s.axes(bound)
        body = self.emit(r.args[0], 0)
        along = self.vector in bound_axes
        combine = {
            "sum": "{} + {}",
            "max": "tl.maximum({}, {})",
            "softmax_max": "tl.maximum({}, {})",
            "min": "tl.minimum({}, {})",
        }[name]
        if along:
            neutral = {"sum": "0", "min": 'float("inf")'}.get(name, 'float("-inf")')
            call = {"sum": "tl.sum", "min": "tl.min"}.get(name, "tl.max")
            body = f"{call}(tl.where(inside, {_bare(body)}, {neutral}), axis=1, keep_dims=True)"
        self.line(f"{target} = {body if plain else combine.format(target, body)}")

    def store_lines(self, store: Store) -> None:
        value = self.emit(self.unrounded(store), 0)
        address = self.s.addresses[id(store)]
        axes = self.s.axes(store.axes)
        mask = "inside" if self.vector in axes else "row < rows"
        where = self.where(address)
        if store.expr.dtype == "bool" and store.expr.kind == "const":
            value = f"tl.full({self.one}, {value}, tl.int1)"
        name = self.outputs[store.out]
        if not self.is_block(axes):
            where += " + row * 0"
        if store.expr.dtype in HALVES:
            value = f"{value if closed(value) else f'({value})'}.to({name}.dtype.element_ty)"
        self.line(f"tl.store({name} + {where}, {_bare(value)}, mask={mask})")

    # expressions

    def depth(self, e: Expr) -> int:
        return 0

    def scope_of(self, e: Expr) -> dict[Expr, str]:
        """Names live in the innermost loop that the expression depends on."""
        axes = self.s.axes(e.axes)
        inner = any(a in axes for a in self.loops[:-1])
        return self.scopes[-1] if inner or len(self.scopes) > 1 else self.scopes[0]

    def emit(self, e: Expr, depth: int) -> str:
        for scope in self.scopes:
            if e in scope:
                return scope[e]
        if e.kind == "const":
            return self.literal(e.data, e.dtype)
        if e.kind == "size":
            text = self.mono(self.s.atoms(e.data))
            return f"({text})" if " " in text else text
        if e.kind == "param":
            self.params[e.data] = None
            return e.data
        if e.kind == "axis":
            return self.index_text(next(iter(self.s.axes([e.data]))))
        if e.kind == "reduce":
            return self.results[e]
        text = self.load(e, 0) if e.kind == "load" else self.operation(e, 0)
        if text.isidentifier():
            return text
        if e.kind != "load" and self.uses.get(e, 2) == 1 and len(text) < 60 and self.in_one_stage(e):
            return text if closed(text) else f"({text})"
        name = self.fresh(self.stem(e))
        self.line(f"{name} = {text}")
        self.scope_of(e)[e] = name
        return name

    def in_one_stage(self, e: Expr) -> bool:
        """Whether only the current stage needs the value."""
        found = 0
        for stage in self.g.stages:
            found += e in self.values(stage, set())
        return found <= 1

    def count_uses(self, stage: Stage) -> None:
        self.kept: dict[Expr, str] = {}
        super().count_uses(stage)

    def index_text(self, axis: Axis, relative: bool = False) -> str:
        return "lane" if axis is self.vector else self.axis_name(axis)

    def operation(self, e: Expr, depth: int) -> str:
        if e.data == "where":
            return f"tl.where({', '.join(_bare(self.emit(x, 0)) for x in e.args)})"
        args = [self.emit(a, 0) for a in e.args]
        if e.data == "cast" and e.args[0].kind == "size" and e.dtype in {"float32", "float64"}:
            return f"{args[0]} * 1.0"  # a size of one is a constant without .to()
        if e.data == "cast":
            return self.convert_to(args[0], e.args[0].dtype, e.dtype)
        if e.data == "as_half":
            return args[0]
        if e.data in INFIX:
            sign = {"&&": "&", "||": "|", "/": "/"}.get(INFIX[e.data], INFIX[e.data])
            return f"{args[0]} {'//' if e.data == 'index_div' else sign} {args[1]}"
        if e.data in {"maximum", "minimum"}:
            return self.extreme(e, args)
        if e.data in _FORMS:
            return _FORMS[e.data].format(*args)
        raise Unsupported(e.data, "has no Triton form")

    def extreme(self, e: Expr, args: list[str]) -> str:
        """maximum or minimum; NaN stays, as in eager."""
        if e.dtype not in FLOATING:
            return f"tl.{e.data}({args[0]}, {args[1]})"
        for k in (0, 1):
            if e.args[k].kind != "const" and not args[k].isidentifier():
                name = self.fresh("v")
                self.line(f"{name} = {_bare(args[k])}")
                args[k] = name
        a, b = args
        test = f"{a} {'<' if e.data == 'maximum' else '>'} {b}"
        return f"tl.where({test if e.args[1].kind == 'const' else f'({test}) | ({b} != {b})'}, {b}, {a})"

    def convert_to(self, text: str, source: str, target: str) -> str:
        text = text if closed(text) else f"({text})"
        if text.replace(".", "").replace("-", "").isdigit() or not any(c.isalpha() for c in text):
            text = f"tl.full({self.one}, {text}, {TYPES.get(source, 'tl.float32')})"
        if target == "half":
            if self.generic is None:
                raise Unsupported("dtype", "no input tells the 16-bit type")
            return f"{text}.to({self.generic}.dtype.element_ty).to(tl.float32)"
        if target in HALVES:
            return f"{text}.to(tl.{target}).to(tl.float32)"
        if target == "bool":
            return f"({text} != 0)"
        if source in HALVES and target == "float32":
            return text
        return f"{text}.to({TYPES[target]})"

    def literal(self, value: float | int | bool, dtype: str) -> str:
        if dtype == "bool":
            return "True" if value else "False"
        if dtype not in FLOATING:
            return str(int(value))
        if math.isinf(value) or (dtype != "float64" and abs(value) > 3.4028234663852886e38):
            return f'float("{"-" if value < 0 else ""}inf")'
        if math.isnan(value):
            return 'float("nan")'
        return f"({float(value)!r})" if value < 0 else repr(float(value))

    # memory

    def load(self, e: Expr, depth: int) -> str:
        name, address = self.names[e.data], self.s.addresses[e]
        self.inputs[e.data] = e.dtype
        axes = self.s.axes(e.axes)
        mask = "inside" if self.vector in axes else "row < rows"
        if not self.is_block(axes):
            text = f"tl.load({name} + {self.where(address)})"
        else:
            text = f"tl.load({name} + {self.where(address)}, mask={mask}, other=0)"
        if e.dtype in HALVES:
            return f"{text}.to(tl.float32)"
        if e.dtype == "bool":
            return f"({text} != 0)"
        if e.dtype not in {"float32", "float64", "int64"}:
            return f"{text}.to(tl.int64)"
        return text

    def is_block(self, axes: frozenset[Axis]) -> bool:
        """Whether an address differs among the elements of a program."""
        return self.vector in axes or any(a in axes for a in self.g.rows)

    def where(self, address: Address) -> str:
        parts = []
        for axis, mono in sorted(address.terms.items(), key=lambda kv: self.s.order.index(kv[0])):
            parts.append(self.scaled(self.index_text(axis), mono))
        for e, mono in address.rest:
            parts.append(self.mono(mono) if e is None else self.scaled(self.emit(e, 0), mono))
        return " + ".join(parts) or "0"


def _bare(text: str) -> str:
    """Without parentheses around the whole."""
    if text.startswith("(") and text.endswith(")") and closed(text[1:-1]) is False:
        depth = 0
        for k, c in enumerate(text):
            depth += (c == "(") - (c == ")")
            if depth == 0 and k < len(text) - 1:
                return text
        return text[1:-1]
    return text
