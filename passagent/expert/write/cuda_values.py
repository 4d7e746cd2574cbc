"""Expressions and memory accesses in Triton kernels, as text."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch

from passagent.expert.lower.expressions import FLOATING, HALVES, INTEGERS, Axis, Expr, parts
from passagent.expert.lower.symbolic_sizes import Unsupported
from passagent.expert.schedule.stages import Address, Group, Mono
from passagent.expert.write import INFIX, Writer, bare, closed, literal
from passagent.expert.write.cuda_grid import Form

TYPES = {name: f"tl.{name}" for name in ("float32", "float64", *INTEGERS)} | {"bool": "tl.int1"}

_FORMS = {
    "neg": "{0} * -1",  # Triton's minus is 0 - x, which loses the sign of 0.0
    "relu": "tl.where({0} <= 0, 0, {0})",  # of -0.0 eager makes 0.0
    "not": "({0} == 0)",
    "index_clamp": "tl.minimum(tl.maximum({0}, 0), {1})",
    "fma": "tl.fma({0}, {1}, {2})",
    **{name: f"tl.{name}({{0}})" for name in ("rsqrt", "sin", "cos", "erf", "abs", "floor", "ceil")},
    "bits": "{0}.to(tl.int32, bitcast=True)",
    "as_half": "{0}",
}
"""Operations that are neither infix nor a choice."""

_LIBDEVICE = ("exp", "log", "log2", "log10", "log1p", "expm1", "rint", "tanh", "tan")
_FORMS |= {name: f"libdevice.{name}({{0}})" for name in _LIBDEVICE}
"""CUDA's own functions, as exact as eager's, where Triton's are approximations."""

EXACT = {"div": "tl.div_rn({0}, {1})", "exp_added": "libdevice.exp({0})"}
"""Rounded to nearest (exp: two units), by ten instructions or so."""

CHEAP = {"div": "{0} / {1}", "exp_added": "tl.exp({0})"}
"""One or two instructions. div.full.f32: two units; exp: a power of two, which is off by 2^-24 of the value
for each unit of its argument. So it is taken only where it is added to something larger (a sum of powers,
1 + exp(-x)), which is then as exact as ever. A cheap square root, which makes 0 of small numbers, is not."""

_SPECIAL = {name: f'float("{name}")' for name in ("inf", "-inf", "nan")}
_SMALLEST_NORMAL = 2.0**-126
"""The smallest normal float32: CUDA's functions in Triton take what is smaller for zero, or worse."""


class TritonValues(Writer):
    """Values for the writer of a group's stages: values by name, addresses and masks."""

    g: Group
    form: Form
    vector: Axis | None
    cross: Axis | None

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.lines, self.indent = list[str](), 1
        self.scopes: list[dict[Expr, str]] = [{}]
        self.generic: str | None = None
        """An input of the 16-bit type."""
        self.decisive: set[Expr] = set()
        """Values whose last place counts."""
        self.unit = "(1, 1)"
        """The shape of a block of one element."""
        self.joined: list[Axis] = []
        """The joined axes of the form."""

    def line(self, text: str) -> None:
        self.lines.append("    " * self.indent + text)

    def mono(self, mono: Mono) -> str:
        """A product of sizes is one number, computed on the host: Triton sees what divides it."""
        if not mono[1]:
            return str(mono[0])
        factors = [*([] if mono[0] == 1 else [str(mono[0])]), *mono[1]]
        return self.size(" * ".join(factors))

    def mask(self, axes: Iterable[Axis]) -> str:
        """Where a block over these axes holds elements; nothing where it always does."""
        axes = set(axes)
        wide = self.vector in axes or any(a in axes for a in self.joined)
        if self.form.kind == "flat":
            return "inside"
        if self.cross is not None:
            other, high = "levels_inside", self.cross in axes
        else:
            other, high = "rows_inside", not wide or any(a in axes for a in self.g.rows)
        if wide:
            return "inside" if high else "lanes_inside"
        return other if high else ""

    # expressions

    def emit(self, e: Expr, depth: int) -> str:
        for scope in self.scopes:
            if e in scope:
                return scope[e]
        if (leaf := self.leaf(e)) is not None:
            return leaf
        if e.kind == "reduce":
            return self.results[e]
        text = self.load(e, 0) if e.kind == "load" else self.operation(e, 0)
        if text.isidentifier():
            return text
        if e.kind != "load" and self.uses.get(e, 2) == 1 and len(text) < 60 and self.in_one_stage(e):
            return text if closed(text) else f"({text})"
        name = self.fresh(self.stem(e))
        self.line(f"{name} = {text}")
        self.scopes[-1][e] = name
        return name

    def in_one_stage(self, e: Expr) -> bool:
        """Tell whether only the current stage needs the value."""
        return sum(e in stage.values for stage in self.g.stages) <= 1

    def index_text(self, axis: Axis, relative: bool = False) -> str:
        if axis in self.joined:
            return self.axis_name(axis)
        return "lane" if axis is self.vector else "level" if axis is self.cross else self.axis_name(axis)

    def operation(self, e: Expr, depth: int) -> str:
        if e.data == "where":
            return f"tl.where({', '.join(bare(self.emit(x, 0)) for x in e.args)})"
        args = [self.emit(a, 0) for a in e.args]
        if e.data in EXACT and (e.dtype == "float32" or e.data == "exp_added"):
            cheap = e.dtype == "float32" and e not in self.decisive and self.is_each(e) and not is_mean(e)
            if e.data == "div" and cheap:
                return self.quotient(e, args)
            return (CHEAP if cheap else EXACT)[e.data].format(*map(bare, args))
        if e.data == "sqrt":
            return f"tl.sqrt{'_rn' if e.dtype == 'float32' else ''}({bare(args[0])})"
        if e.data in INFIX:
            sign = {"and": "&", "or": "|", "index_div": "//"}.get(e.data, INFIX[e.data])
            return f"{args[0]} {sign} {args[1]}"
        if e.data in {"maximum", "minimum"}:  # NaN stays, as in eager
            nan = ", propagate_nan=tl.PropagateNan.ALL" if e.dtype in FLOATING else ""
            return f"tl.{e.data}({', '.join(map(bare, args))}{nan})"
        of_its_own = {"checked": self.checked, "pow": self.power, "cast": self.cast}
        if e.data in of_its_own:
            return of_its_own[e.data](e, args)
        if e.data == "neg" and e.args[0].kind == "const":
            return self.number(-e.args[0].data, e.dtype)
        if e.data in _FORMS:
            form = _FORMS[e.data]
            return form.format(*(map(bare, args) if form.startswith(("tl.", "libdevice.")) else args))
        raise Unsupported(e.data, "has no Triton form")

    def is_each(self, e: Expr) -> bool:
        """Tell whether a value is computed for each element of a block: a row's own cost nothing."""
        axes = self.s.axes(e.axes)
        wide = self.vector is None or self.vector in axes or any(a in axes for a in self.joined)
        return wide and (self.cross is None or self.cross in axes)

    def quotient(self, e: Expr, args: list[str]) -> str:
        """a / b of each element; where many have the same b, a times its reciprocal, which is taken once."""
        if self.is_each(e.args[1]):
            return CHEAP["div"].format(*args)
        unit = self.s.trace.const(1.0, e.dtype)
        return f"{args[0]} * {self.emit(self.s.trace.op('div', [unit, e.args[1]], e.dtype), 0)}"

    def cast(self, e: Expr, args: list[str]) -> str:
        """A value in another dtype."""
        source = e.args[0]
        kinds = {part.kind for part in parts(source)}
        of_sizes = "size" in kinds and kinds <= {"size", "const", "op"}  # may be a constant, without .to()
        if of_sizes and e.dtype == "float64":
            return f"tl.full({self.unit}, {bare(args[0])}, tl.float64)"
        if of_sizes and e.dtype == "float32":
            return f"{args[0] if closed(args[0]) else f'({args[0]})'} * 1.0"
        if source.kind == "param" and e.dtype == "float32":
            return args[0]  # a kernel is given floats in 32 bits; the interpreter as Python has them
        text = args[0] if closed(args[0]) else f"({args[0]})"
        if "const" in (source.kind, *(a.kind for a in source.args if source.data == "neg")):
            text = f"tl.full({self.unit}, {text}, {TYPES.get(source.dtype, 'tl.float32')})"
        if e.dtype == "half":
            return f"{text}.to({self.half_of()}.dtype.element_ty).to(tl.float32)"
        if e.dtype in HALVES:
            return f"{text}.to(tl.{e.dtype}).to(tl.float32)"
        if e.dtype == "bool":
            return f"({text} != 0)"
        if source.dtype in HALVES and e.dtype == "float32":
            return text
        return f"{text}.to({TYPES[e.dtype]})"

    def power(self, e: Expr, args: list[str]) -> str:
        """x ** y. CUDA's function, as Triton links it, takes subnormal numbers for others.

        These are given to it 2^32 times as large, and the result is 2^(32 y) times as large as it should be.
        """
        base, by = [
            self.number(a.data, e.dtype, typed=True) if a.kind == "const" else bare(text)
            for a, text in zip(e.args, args, strict=True)
        ]
        if e.dtype == "float64" or e.args[0].kind == "const":
            return f"libdevice.pow({base}, {by})"
        if not base.isidentifier():  # it is written more than once
            text, base = base, self.fresh(self.stem(e.args[0]))
            self.line(f"{base} = {text}")
        tiny = self.fresh("tiny")
        self.line(f"{tiny} = tl.abs({base}) < {_SMALLEST_NORMAL}")
        back = f"libdevice.exp2({by} * -32.0)"
        if e.args[1].kind == "const":
            factor = torch.tensor(-32.0 * e.args[1].data, dtype=torch.float64).exp2().float()
            back = bare(self.number(factor.item(), "float32"))
        scaled = f"tl.where({tiny}, {base} * 4294967296.0, {base})"
        return f"libdevice.pow({scaled}, {by}) * tl.where({tiny}, {back}, 1.0)"

    def checked(self, e: Expr, args: list[str]) -> str:
        """An index, once the kernel has asserted that it is in range."""
        axes, name = self.s.axes(e.axes), self.fresh("index")
        mask = f", mask={self.mask(axes)}" if self.is_block(axes) else ""
        self.line(f"{name} = {bare(args[0])}")
        self.line(f'tl.device_assert(({name} >= 0) & ({name} < {args[1]}), "index out of range"{mask})')
        self.scopes[-1][e] = name
        return name

    def half_of(self) -> str:
        """The input that tells the 16-bit type: the kernel is given it even if it reads nothing of it."""
        if self.generic is None:
            raise Unsupported("dtype", "no input tells the 16-bit type")
        self.inputs.setdefault(self.names.index(self.generic), "half")
        return self.generic

    def number(self, value: float | int | bool, dtype: str, typed: bool = False) -> str:
        """A literal; `typed`, or where Triton would take another dtype or lose the sign of 0.0, a block."""
        text, kind = literal(value, dtype, _SPECIAL), TYPES.get(dtype, "tl.float32")
        if dtype in FLOATING and value == 0 and math.copysign(1, value) < 0:
            return f"(tl.full({self.unit}, 0.0, {kind}) * -1)"
        is_tiny = dtype in FLOATING and 0 < abs(value) < _SMALLEST_NORMAL
        is_block = typed or is_tiny or dtype in ("float64", "bool")
        return f"tl.full({self.unit}, {bare(text)}, {kind})" if is_block else text

    # memory

    def load(self, e: Expr, depth: int) -> str:
        name, address = self.names[e.data], self.s.addresses[e]
        self.inputs[e.data] = e.dtype
        axes = self.s.axes(e.axes)
        masked = f", mask={self.mask(axes)}, other=0" if self.is_block(axes) else ""
        text = f"tl.load({name} + {self.where(address)}{masked})"
        if e.dtype in HALVES:
            return f"{text}.to(tl.float32)"
        if e.dtype == "bool":
            return f"({text} != 0)"
        if e.dtype not in {"float32", "float64", "int64"}:
            return f"{text}.to(tl.int64)"
        return text

    def is_block(self, axes: frozenset[Axis]) -> bool:
        """Tell whether an address differs among the elements of a program."""
        if self.vector in axes or any(a in axes for a in self.joined):
            return True
        return self.cross in axes if self.cross is not None else any(a in axes for a in self.form.rows)

    def where(self, address: Address) -> str:
        terms, first = address.terms, list[str]()
        if self.joined and self.form.runs(self.s, terms):
            first = [self.scaled("lane", terms[self.joined[-1]])]
            terms = {axis: mono for axis, mono in terms.items() if axis not in self.joined}
        return self.sum_of(terms, address.rest, first)


def is_mean(e: Expr) -> bool:
    """Tell whether an expression is a mean: a sum that is divided; equal elements do not differ from it."""
    above = e.args[0]
    while above.data in {"cast", "as_half"}:
        above = above.args[0]
    return e.data == "div" and above.kind == "reduce"
