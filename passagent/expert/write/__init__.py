"""The common part of kernel writers: names, sizes, and how often values are used."""

from __future__ import annotations

import ast
import math
import re
import textwrap
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import accumulate

from passagent.expert.choices import Plan
from passagent.expert.lower.expressions import FLOATING, HALVES, Axis, Expr, parts
from passagent.expert.schedule import Schedule
from passagent.expert.schedule.stages import Mono, Stage, Store

CTYPES = {"half": "T", "float16": "float16", "bfloat16": "bfloat16"}
CTYPES |= {"float32": "float", "float64": "double", "bool": "bool"}
"""C++ type of a dtype; integers are int64_t, int32_t, ..."""

VALUES = {**dict.fromkeys(HALVES, "float"), "float32": "float", "float64": "double", "bool": "bool"}
"""C++ type of a value in a register."""

INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/", "and": "&&", "or": "||"}
INFIX |= {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
INFIX |= {"index_add": "+", "index_mul": "*", "index_div": "/", "index_mod": "%"}

_STEMS = {
    "add": "total", "sub": "difference", "mul": "product", "div": "ratio", "fma": "scaled", "neg": "negated",
    "exp": "power", "exp_added": "power", "exp_below": "power", "sqrt": "root", "rsqrt": "inverse",
    "cast": "rounded", "as_half": "rounded", "where": "picked", "maximum": "larger", "minimum": "smaller",
    "relu": "positive", "tanh": "squashed", "bits": "bits",
    "index_add": "shifted", "index_mod": "wrapped", "index_div": "quotient",
}  # fmt: skip


@dataclass
class Kernel:
    """A kernel's text and what to call it with, in order."""

    source: str
    name: str
    inputs: list[int]
    sizes: list[str]
    """Host expressions."""
    params: list[str]


@dataclass
class Part:
    """A group's code in a Triton kernel, and host expressions for its rows and lanes."""

    lines: list[str]
    rows: list[str]
    lanes: str
    tiled: bool
    """Lanes are split into tiles."""
    kind: str
    """The kind of cuda_grid.Form."""
    height: str = ""
    """Host expression for the size of the axis across the lanes, where it is no row."""
    limit: str = ""
    """A host condition that chooses this form of the kernel where there are several."""
    hints: tuple[int, int, int, int] = (1, 1, 0, 0)
    """In the example: rows, lanes, height (0: there is none), bytes that are read and written."""
    loads: int = 1
    """The loads of an element."""
    padded: dict[str, str] = field(default_factory=dict)
    """Sides of a product's blocks, by the constant that holds one, as host expressions of their sizes."""
    each: str = ""
    """Bytes of an element that products take."""
    stages: int = 0
    """Blocks of a loop that are loaded ahead; 0: as Triton has it."""
    ends: bool = False
    """Its form has them; a program with all of its lanes then needs no mask."""

    def numbers(self, suffix: str) -> list[str]:
        """The parameters that say what a program does."""
        flat, counted = self.kind == "flat", self.kind in {"rows", "long"}
        constants = self.used(["BLOCK", *([] if flat else ["ROWS"]), *self.padded])
        return [*([f"rows{suffix}"] if counted else []), *(f"{c}{suffix}: tl.constexpr" for c in constants)]

    def used(self, names: list[str]) -> list[str]:
        """The names that its lines use."""
        return Function("", names, self.lines).used


@dataclass
class Function:
    """A function of a Triton kernel."""

    name: str
    parameters: list[str]
    lines: list[str]

    @property
    def used(self) -> list[str]:
        """The parameters that its lines use."""
        names = spoken("\n".join(["def part():", *self.lines]))
        return [parameter for parameter in self.parameters if parameter.partition(":")[0] in names]

    def text(self) -> list[str]:
        return ["@triton.jit", f"def {self.name}({', '.join(self.parameters)}):", *self.lines]


@dataclass
class TritonKernel(Kernel):
    """All groups of a schedule in one launch."""

    parts: list[Part]
    arguments: list[str]

    def __post_init__(self) -> None:
        self.source = "\n".join(line for function in self.functions(self.name) for line in function.text())

    def functions(self, name: str) -> list[Function]:
        """The kernel under a name, which comes last, and its parts where there are several."""
        if len(self.parts) == 1:
            (part,) = self.parts
            return [Function(name, [*self.arguments, *part.numbers("")], part.lines)]
        functions, numbers = list[Function](), list[str]()
        lines, rest, last = ["    program = tl.program_id(0)"], "program", len(self.parts)
        for k, part in enumerate(self.parts, 1):
            theirs, ours = part.numbers(""), part.numbers(str(k))
            numbers += [f"programs{k}", *ours] if k < last else ours
            used = part.used(self.arguments)
            functions.append(Function(f"{name}_part{k}", ["program", *used, *theirs], part.lines))
            pairs = zip(theirs, ours, strict=True)
            passed = [f"{a.partition(':')[0]}={b.partition(':')[0]}" for a, b in pairs]
            test = "else:" if k == last else f"{'if' if k == 1 else 'elif'} {rest} < programs{k}:"
            lines += [f"    {test}", f"        {name}_part{k}({', '.join([rest, *used, *passed])})"]
            rest = f"{rest} - programs{k}"
        parameters = [*self.arguments, *sorted(numbers, key=lambda n: ":" in n)]
        return [*functions, Function(name, parameters, lines)]


def spoken(code: str) -> set[str]:
    """Names that a Python text reads or assigns."""
    return {node.id for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Name)}


class Writer:
    """The state that both targets' writers keep while they write a kernel, and what they write alike."""

    emit: Callable[[Expr, int], str]
    number: Callable[[float, str], str]
    index_text: Callable[[Axis], str]

    def __init__(
        self, schedule: Schedule, name: str, names: list[str], outputs: list[str], plan: Plan
    ) -> None:
        self.s, self.name, self.names, self.outputs, self.plan = schedule, name, names, outputs, plan
        self.sizes: dict[str, str] = {}
        self.params: dict[str, None] = {}
        self.inputs: dict[int, str] = {}
        self.results: dict[Expr, str] = {}
        self.buffered: dict[Expr, str] = {}
        self.tables: dict[Expr, str] = {}
        self.counts = dict.fromkeys([*names, *outputs], 1)
        self.lone_row: Axis | None = None
        """The axis whose index is the row's number."""

    def fresh(self, stem: str) -> str:
        self.counts[stem] = self.counts.get(stem, 0) + 1
        return stem if self.counts[stem] == 1 else f"{stem}{self.counts[stem]}"

    def take(self, texts: Iterable[str], parameters: list[str]) -> None:
        """Have the kernel take the inputs and the pattern's parameters that host expressions name."""
        named = set(mentioned([*(f"s{k}" for k in range(len(self.names))), *parameters], texts))
        for k, dtype in enumerate(self.s.trace.dtypes[: len(self.names)]):
            if f"s{k}" in named:
                self.inputs.setdefault(k, dtype)
        self.params.update(dict.fromkeys(p for p in parameters if p in named))

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
        return "row" if axis is self.lone_row else f"i{self.s.order.index(axis)}"

    def ctype(self, dtype: str) -> str:
        return CTYPES.get(dtype, f"{dtype}_t")

    def vtype(self, dtype: str) -> str:
        return VALUES.get(dtype, "int64_t")

    def keeps_nan(self, name: str, dtype: str) -> bool:
        """Tell whether a reduction is NaN where an element is: a softmax is so without its maximum."""
        return name in ("max", "min") and self.vtype(dtype) != "int64_t"

    def count_uses(self, stage: Stage) -> None:
        """How often each value is asked for in a stage: what is used once is written in place."""
        self.uses: dict[Expr, int] = {}

        def walk(e: Expr) -> None:
            self.uses[e] = self.uses.get(e, 0) + 1
            is_stored = e in self.buffered or e in self.tables
            if self.uses[e] == 1 and e.kind != "reduce" and not is_stored:
                for a in e.args:
                    walk(a)

        for body in stage.bodies:
            walk(body)

    def unrounded(self, store: Store) -> Expr:
        """A store to a 16-bit type rounds: what is only stored need not be rounded before."""
        e = store.expr
        return e.args[0] if e.data == "cast" and e.dtype in HALVES and self.uses.get(e) == 1 else e

    def stem(self, e: Expr) -> str:
        """Name a value after the operator that makes it."""
        if e.kind == "load":
            return f"{self.names[e.data]}_v"
        if e.data == "div" and e.args[0].kind == "reduce" and e.args[0].data[0] == "sum":
            summed = e.args[0].args[0]
            is_square = summed.data == "mul" and summed.args[0] is summed.args[1]
            return "variance" if is_square and summed.args[0].data == "sub" else "mean"
        if e.data == "cast" and e.args[0].kind == "size":
            return "length"
        return _STEMS.get(str(e.data), "value")

    def depth(self, e: Expr) -> int:
        """Loops that an expression needs."""
        return 0

    def leaf(self, e: Expr) -> str | None:
        """A number, a size, a parameter or an index; None for other expressions."""
        match e.kind:
            case "const":
                return self.number(e.data, e.dtype)
            case "size":
                return parenthesised(self.mono(self.s.atoms(e.data)))
            case "param":
                self.params[e.data] = None
                return str(e.data)
            case "axis":
                return self.index_text(next(iter(self.s.axes([e.data]))))
        return None

    def sum_of(
        self, terms: dict[Axis, Mono], rest: list[tuple[Expr | None, Mono]], first: Iterable[str] = ()
    ) -> str:
        """The place that terms of an address and its rest add up to."""
        walked = sorted(terms, key=self.s.order.index)
        parts = [*first, *(self.scaled(self.index_text(axis), terms[axis]) for axis in walked)]
        for e, mono in rest:
            parts.append(self.mono(mono) if e is None else self.scaled(self.emit(e, self.depth(e)), mono))
        return " + ".join(parts) or "0"

    def scaled(self, index: str, mono: Mono) -> str:
        if mono == (1, ()):
            return index
        return f"{index if closed(index) else f'({index})'} * {self.mono(mono)}"


def mentioned(names: Iterable[str], texts: Iterable[str]) -> list[str]:
    """The names that host expressions use."""
    used = {word for text in texts for word in re.findall(r"\w+", text)}
    return [name for name in names if name in used]


def decoded(index: str, parts: list[tuple[str, str]], sign: str = "//") -> list[tuple[str, str]]:
    """The indices, by name, that one index over all stands for; `parts`: their names and sizes."""
    indices, rest = [], index
    for position, (name, size) in enumerate(reversed(parts)):
        indices.append((name, rest if position == len(parts) - 1 else f"{rest} % {size}"))
        rest = f"{rest if sign == '/' or closed(rest) else f'({rest})'} {sign} {size}"
    return indices


def closed(text: str) -> bool:
    """Tell whether an operand needs no parentheses: a name, a number, a call, an element."""
    depths = accumulate((c in "([") - (c in ")]") for c in text)
    inside = all(depth or c not in " ?" for c, depth in zip(text, depths, strict=True))
    return inside and not text.startswith("-")


_COSTS = {"pow": 20, "tanh": 10, "erf": 10, "div": 3, "sqrt": 3}
_COSTS |= dict.fromkeys(("exp", "exp_added", "exp_below", "log", "log1p", "expm1", "sin", "cos"), 8)


def cost(expr: Expr) -> int:
    """Rough operations that computing an expression takes."""
    total = 0
    for e in parts(expr, whole=lambda e: e.kind != "op"):
        if e.kind == "op" and e.data == "cast":
            total += 4 if e.dtype in HALVES else 0
        elif e.kind not in {"const", "size", "param", "axis", "reduce"}:
            total += _COSTS.get(e.data, 0) or (2 if e.dtype in HALVES else 1)
    return total


def literal(value: float | int | bool, dtype: str, words: dict[str, str], suffix: str = "") -> str:
    """A number as an element of a dtype has it; `words` are the target's for infinities, NaN and truth."""
    if dtype not in FLOATING:
        number = str(bool(value) if dtype == "bool" else int(value))
        return words.get(number, number)
    overflows = dtype != "float64" and abs(value) > 3.4028234663852886e38
    number = repr(math.copysign(math.inf, value) if overflows else float(value))
    text = words.get(number, number + suffix)
    return f"({text})" if value < 0 and number not in words else text


def parenthesised(text: str) -> str:
    return f"({text})" if " " in text else text


def bare(text: str) -> str:
    """Without parentheses around the whole."""
    depths = list(accumulate((c == "(") - (c == ")") for c in text))
    is_whole = text.startswith("(") and text.endswith(")") and 0 not in depths[:-1]
    return text[1:-1] if is_whole and not closed(text[1:-1]) else text


def wrapped(arguments: list[str], before: int) -> str:
    """Parameters side by side; in lines of their own where they do not fit behind the name."""
    text = ", ".join(arguments)
    if before + len(text) <= 100:
        return text
    held = ", ".join(a.replace(" ", "\0") for a in arguments)
    filled = textwrap.wrap(held, 96, break_long_words=False, break_on_hyphens=False)
    return "\n    " + "\n    ".join(filled).replace("\0", " ")
