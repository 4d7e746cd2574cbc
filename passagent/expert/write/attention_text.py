"""The Triton kernel of an attention.

A program handles ROWS queries of one head. It goes over the keys in blocks of BLOCK, and keeps of each row
the largest score, the sum of its weights and the sum of the values by their weights (online softmax). Where
all keys are one block there is no loop, and the weights are rounded where eager rounds them.
"""

from __future__ import annotations

from collections.abc import Iterable

from passagent.expert.choices import Plan
from passagent.expert.graph import words
from passagent.expert.lower.attention import Attention
from passagent.expert.lower.expressions import HALVES, Axis, Expr, Value, parts
from passagent.expert.lower.symbolic_sizes import product
from passagent.expert.schedule import Schedule
from passagent.expert.schedule.stages import Group
from passagent.expert.write import Part, TritonKernel, bare, closed, decoded, mentioned
from passagent.expert.write.cuda_text import within
from passagent.expert.write.cuda_values import TritonValues
from passagent.kernels.layout import Order

KIND = "attention"
"""The kind of its part."""
_OWN = words("""
    program blocks head first row key deep wide q k v score top total higher base shrunk start rows_inside
    keys_inside levels_inside places_inside deep_inside wide_inside
""")
"""Names of the kernel's own."""
LOG2E = "1.4426950408889634"


def power(score: str, top: str) -> str:
    """e ** (score - top), which is 1 for the largest score.

    Not as one fma of `score * LOG2E` and `top * LOG2E`, which are rounded differently: from scores of 3e8 on
    the weight of the largest would be too large for 16 bits.
    """
    return f"tl.exp2(({score} - {top}) * {LOG2E})"


class Placed(Schedule):
    """Where an attention's loads and its store go: addresses alone, no stages."""

    def __init__(self, low: Attention, output: Value) -> None:
        self.low = low
        super().__init__(low.trace, [output], "cuda", (low.query, low.key, low.value, low.score, low.weight))
        (self.store,) = self.stores

    def _mergeable(self, a: Axis, b: Axis, reduces: list[Expr]) -> bool:
        """Axes of one role only."""
        return self._role(a) == self._role(b) and super()._mergeable(a, b, reduces)

    def _role(self, axis: Axis) -> int:
        roles = [self.axes(role) for role in self.low.axes.values()]
        return next((k for k, role in enumerate(roles) if axis in role), -1)


class AttentionText(TritonValues):
    """Writes the kernel."""

    s: Placed

    def __init__(self, low: Attention, schedule: Placed, name: str, names: list[str], plan: Plan) -> None:
        super().__init__(schedule, name, [*names, "scores", "weights", "result"], ["out"], plan)
        self.low, self.g = low, Group([], None, [])
        self.counts.update(dict.fromkeys(_OWN, 1))
        every = parts(low.query, low.key, low.value, low.score)
        halves = (self.names[e.data] for e in every if e.kind == "load" and e.dtype == "half")
        self.generic = next(halves, None)
        self.places: dict[Axis, str] = {}
        self.masks: dict[Axis, str] = {}
        roles = ("rows", "columns", "depth", "width")
        self.rows, self.columns, self.deep, self.width = (
            [a for a in schedule.order if a in schedule.axes(low.axes[role])] for role in roles
        )
        taken = {*self.rows, *self.columns, *self.deep, *self.width}
        self.heads = [a for a in schedule.order if a not in taken]

    # what TritonValues asks for

    def index_text(self, axis: Axis, relative: bool = False) -> str:
        return self.places[axis]

    def is_block(self, axes: Iterable[Axis]) -> bool:
        return any(axis in self.masks for axis in axes)

    def mask(self, axes: Iterable[Axis]) -> str:
        axes = set(axes)
        return " & ".join(dict.fromkeys(mask for axis, mask in self.masks.items() if axis in axes)) or "True"

    def is_each(self, e: Expr) -> bool:
        axes = self.s.axes(e.axes)
        return all(any(a in axes for a in side) for side in (self.rows, self.columns))

    def load(self, e: Expr, depth: int) -> str:
        number = e.data - self.low.count
        return self.names[e.data] if number >= 0 else super().load(e, depth)

    # text

    def place(self, axes: list[Axis], index: str, step: str, mask: str) -> None:
        """Write the axes' indices, made of the index over all of them, and the mask where it is inside."""
        size = " * ".join(self.axis_size(a) for a in axes) or "1"
        self.line(f"{mask} = {within(index, size, step)}")
        self.masks |= dict.fromkeys(axes, mask)
        if len(axes) == 1:
            self.places[axes[0]] = index
            return
        for axis in reversed(axes):
            self.places[axis] = self.fresh(f"i{self.s.order.index(axis)}")
        for name, text in decoded(index, [(self.places[a], self.axis_size(a)) for a in axes]):
            self.line(f"{name} = {text}")

    def count(self, expr: Expr) -> None:
        """How often each value is asked for."""
        self.uses = {}
        for e in parts(expr):
            for a in e.args:
                self.uses[a] = self.uses.get(a, 0) + 1

    def value(self, expr: Expr, name: str) -> None:
        """`name = expr`, as a product takes it."""
        self.count(expr)
        self.scopes.append({})
        if expr.kind == "load" and expr.dtype in HALVES:
            axes = self.s.axes(expr.axes)
            self.inputs[expr.data] = expr.dtype
            where = self.where(self.s.addresses[expr])
            self.line(f"{name} = tl.load({self.names[expr.data]} + {where}, mask={self.mask(axes)}, other=0)")
        else:
            inner = expr.args[0] if expr.data == "cast" and expr.dtype in HALVES else expr
            text = self.emit(inner, 0)
            self.line(f"{name} = {self.typed(text, expr.dtype)}")
        self.scopes.pop()

    def typed(self, text: str, dtype: str) -> str:
        text = text if closed(text) else f"({text})"
        if dtype == "half":
            return f"{text}.to({self.generic}.dtype.element_ty)"
        return f"{text}.to(tl.{dtype})" if dtype in HALVES else bare(text)

    def rounded(self, name: str, dtype: str) -> None:
        if dtype in HALVES:
            self.line(f"{name} = {self.typed(name, dtype)}.to(tl.float32)")

    def score_lines(self, start: str) -> None:
        """The lines that give `score`, of one block of keys."""
        low = self.low
        self.line(f"key = {start}tl.arange(0, BLOCK)[None, :]")
        self.line("level = tl.arange(0, DEPTH)[:, None]")
        self.place(self.columns, "key", "BLOCK", "keys_inside")
        self.place(self.deep, "level", "DEPTH", "levels_inside")
        self.value(low.key, "k")
        self.count(low.score)
        self.scopes.append({})
        for e in parts(low.score):
            if e.kind == "load" and e.data < low.count:
                self.emit(e, 0)  # a bias is under way while the product is made
        self.line('scores = tl.dot(q, k, input_precision="tf32x3")')
        if low.rounds:
            self.rounded("scores", low.trace.dtypes[low.count])
        self.line(f"score = {bare(self.emit(low.score, 0))}")
        self.scopes.pop()
        self.line('score = tl.where(keys_inside, score, float("-inf"))')

    def value_lines(self, start: str) -> None:
        """The lines that give `v`, of the same keys."""
        self.line(f"place = {start}tl.arange(0, BLOCK)[:, None]")
        self.line("wide = tl.arange(0, WIDTH)[None, :]")
        self.place(self.columns, "place", "BLOCK", "places_inside")
        self.place(self.width, "wide", "WIDTH", "wide_inside")
        self.value(self.low.value, "v")

    def weighted(self) -> str:
        """The weights as the second product takes them."""
        low = self.low
        stored, taken = low.trace.dtypes[low.count + 1], low.weight.dtype
        if stored in HALVES and taken not in HALVES:
            self.rounded("weights", stored)
        return self.typed("weights", taken)

    def body(self) -> None:
        low = self.low
        self.line("program = tl.program_id(0)")
        keys = " * ".join(self.axis_size(a) for a in self.columns) or "1"
        queries = " * ".join(self.axis_size(a) for a in self.rows) or "1"
        self.line(f"blocks = tl.cdiv({queries}, ROWS)")
        self.line("head = program // blocks")
        self.line("first = program % blocks * ROWS")
        self.places |= {axis: f"i{self.s.order.index(axis)}" for axis in self.heads}
        sizes = {axis: self.axis_size(axis) for axis in reversed(self.heads[1:])}
        for name, text in decoded("head", [(self.places[a], sizes.get(a, "")) for a in self.heads]):
            self.line(f"{name} = {text}")
        self.line("row = first + tl.arange(0, ROWS)[:, None]")
        self.line("deep = tl.arange(0, DEPTH)[None, :]")
        self.place(self.rows, "row", "ROWS", "rows_inside")
        self.place(self.deep, "deep", "DEPTH", "deep_inside")
        self.value(low.query, "q")
        self.line(f"if {keys} <= BLOCK:")
        self.indent = 2
        self.value_lines("")
        self.score_lines("")
        self.line("top = tl.max(score, axis=1, keep_dims=True)")
        self.line('top = tl.where(top == float("-inf"), 0.0, top)')
        self.line(f"weights = {power('score', 'top')}")
        self.line("total = tl.sum(weights, axis=1, keep_dims=True)")
        if low.rounds:
            self.line("weights *= 1.0 / total")
        self.line(f'result = tl.dot({self.weighted()}, v, input_precision="tf32x3")')
        if not low.rounds:
            self.line(f"result *= {self.inverse()}")
        self.indent = 1
        self.line("else:")
        self.indent = 2
        self.line('top = tl.full((ROWS, 1), float("-inf"), tl.float32)')
        self.line("total = tl.zeros((ROWS, 1), tl.float32)")
        self.line("result = tl.zeros((ROWS, WIDTH), tl.float32)")
        end = f"tl.minimum({keys}, first + ROWS)" if low.causal else keys
        self.line(f"for start in range(0, {end}, BLOCK):")
        self.indent = 3
        self.score_lines("start + ")
        self.line("higher = tl.maximum(top, tl.max(score, axis=1, keep_dims=True))")
        self.line('base = tl.where(higher == float("-inf"), 0.0, higher)')
        self.line(f"weights = {power('score', 'base')}")
        self.line(f"shrunk = {power('top', 'base')}")
        self.line("total = total * shrunk + tl.sum(weights, axis=1, keep_dims=True)")
        self.value_lines("start + ")
        self.line(f'result = tl.dot({self.weighted()}, v, result * shrunk, input_precision="tf32x3")')
        self.line("top = higher")
        self.indent = 2
        self.line(f"result *= {self.inverse()}")
        self.indent = 1
        self.line("wide = tl.arange(0, WIDTH)[None, :]")
        self.place(self.width, "wide", "WIDTH", "wide_inside")
        address = self.where(self.s.addresses[id(self.s.store)])
        mask = self.mask([*self.rows, *self.width])
        self.line(f"tl.store(out + {address}, result.to(out.dtype.element_ty), mask={mask})")

    def inverse(self) -> str:
        """The factor of the sums: where every key is masked, eager's call gives 0, its softmax NaN."""
        return "1.0 / total" if self.low.rounds else "tl.where(total == 0.0, 0.0, 1.0 / total)"


def attention_kernel(
    low: Attention, name: str, names: list[str], parameters: list[str], order: Order, plan: Plan
) -> tuple[TritonKernel, list[str]]:
    """The kernel of an attention whose output lies in that order, and host expressions of its shape."""
    output = low.output
    shape = list(map(str, output.shape))
    stored = Value([output.dims[d] for d in order], output.expr) if order else output
    schedule = Placed(low, stored)
    writer = AttentionText(low, schedule, name, names, plan)
    writer.body()
    sides = {"heads": writer.heads, "rows": writer.rows, "columns": writer.columns}
    host = {key: product(str(a.size) for a in axes) for key, axes in sides.items()}
    heads, rows, columns = (schedule.volume(axes) for axes in sides.values())
    moved = 4 * heads * (rows + columns) * schedule.volume(writer.deep)
    hints = (heads, columns, rows, moved)
    part = Part(writer.lines, [host["heads"]], host["columns"], False, KIND, host["rows"], "", hints)
    padded = {"DEPTH": writer.deep, "WIDTH": writer.width}
    part.padded = {key: product(str(a.size) for a in axes) for key, axes in padded.items()}
    part.stages = plan.stages
    part.each = {"half": f"{writer.generic}.dtype.itemsize", "float32": "4"}.get(low.query.dtype, "2")
    texts = [*shape, *low.trace.guards, *writer.sizes, *host.values(), *part.padded.values()]
    writer.params.update(dict.fromkeys(mentioned(parameters, texts)))
    arguments = [*names, *writer.params, "out", *writer.sizes.values()]
    used, sizes = list(range(len(names))), list(writer.sizes)
    return TritonKernel("", name, used, sizes, list(writer.params), [part], arguments), shape
