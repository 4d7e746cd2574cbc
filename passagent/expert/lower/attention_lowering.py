"""An attention's operators as expressions: its operands, its scores, and where its result is stored.

What a product or the softmax gives is read like an input by what follows. Sizes, views and pointwise
operators are lowered as anywhere else, so that any bias, mask, scale or grouping of heads is an index or an
expression.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import fx

from passagent.expert.graph import CALL, PRODUCTS, example, op_name, replaced
from passagent.expert.lower.call import Call, arguments, check_shape, wrap
from passagent.expert.lower.dtypes import HALVES
from passagent.expert.lower.expressions import ALONG, Axis, Expr, Trace, Value, parts
from passagent.expert.lower.formulas import where
from passagent.expert.lower.region import Parameter, Path, Region, Types, lower_node, lower_region
from passagent.expert.lower.shapes import broadcast, fit, position, regroup, renamed
from passagent.expert.lower.symbolic_sizes import ONE, Unsupported

NAMES = ("scores", "weights", "result")
"""Names of values that are read like inputs: of the first product, the softmax and the second product."""


@dataclass
class Attention:
    """An attention over axes: of queries `rows`, of keys `columns`, and those that products sum over."""

    trace: Trace
    query: Expr
    key: Expr
    value: Expr
    score: Expr
    """The argument of the softmax, made of the first product's `scores`."""
    weight: Expr
    """The second product's operand, of the softmax's `weights`."""
    output: Value
    rounds: bool
    """True if eager stores scores and weights."""
    causal: bool
    """True if keys behind a query's own place are masked."""
    rows: list[Axis]
    columns: list[Axis]
    depth: list[Axis]
    width: list[Axis]
    count: int
    """Inputs of the region; NAMES follow."""


class _Lowering:
    def __init__(self, region: Region) -> None:
        self.trace, self.count = Trace("cuda"), len(region.inputs)
        self.last = next((n for n in reversed(region.nodes) if op_name(n) == "softmax"), None)
        self.operands: list[Expr] = []
        self.dims: dict[str, tuple[Axis, ...]] = {}
        self.score: Value | None = None
        self.weight: Expr | None = None
        self.rounds, self.causal = True, False

    def lower(
        self,
        trace: Trace,
        node: fx.Node,
        env: dict[fx.Node, Any],
        types: Types,
        literal: Callable[[Path, Any], Any],
    ) -> Any:
        """An operator's value, as lower_node has it but for products and the softmax."""
        self.trace, name = trace, op_name(node)
        if name not in PRODUCTS | {CALL} and node is not self.last:
            return lower_node(trace, node, env, types, literal)

        def leaf(path: Path, value: Any) -> Any:
            return env[value] if isinstance(value, fx.Node) else literal(path, value)

        args, kwargs = replaced(node, leaf)
        out = types.name(example(node).dtype)
        try:
            if name == CALL:
                result = self.call(out, *args, **kwargs)
            elif node is self.last:
                dim = args[1] if len(args) > 1 else kwargs.get("dim")
                if not isinstance(dim, int) or wrap(dim, len(args[0].dims)) != len(args[0].dims) - 1:
                    raise Unsupported(name, "is not taken over the keys")
                result = self.softmax(args[0], out)
            else:
                result = self.product(args[0], args[1], out)
        except Unsupported as error:
            raise Unsupported(name, error.reason) from error
        check_shape(name, result, example(node))
        return result

    def given(self, dims: list[tuple[Axis, ...]], dtype: str) -> Value:
        """A value that is read like an input."""
        dims = [tuple(self.trace.axes_of(d)) for d in dims]
        return Value(dims, self.trace.read([axis for dim in dims for axis in dim], dtype))

    def product(self, left: Value, right: Value, dtype: str) -> Value:
        """left @ right: the first one of an attention, then the second."""
        t = self.trace
        if len(left.dims) < 2 or len(right.dims) < 2:
            raise Unsupported("matmul", "multiplies by a vector")
        left, right = left.refresh(), renamed(right.refresh())
        shared = [*right.dims[:-2], right.dims[-2]]
        dims, replaced = fit(t, [*left.dims[:-2], left.dims[-1]], shared)
        right = Value(right.dims, t.substitute(right.expr, replaced)).refresh()
        first = not self.operands
        names = ("rows", "columns", "depth") if first else ("rows", "width", "columns")
        self.dims |= zip(names, (left.dims[-2], right.dims[-1], dims[-1]), strict=True)
        self.operands += [left.expr, right.expr] if first else [right.expr]
        if not first:
            self.weight = left.expr
        return self.given([*dims[:-1], left.dims[-2], right.dims[-1]], dtype)

    def softmax(self, scores: Value, dtype: str) -> Value:
        self.score = scores.refresh()
        return self.given(self.score.dims, dtype)

    def call(self, out: str, query: Value, key: Value, value: Value, *args: Any, **named: Any) -> Value:
        """scaled_dot_product_attention: eager stores neither scores nor weights."""
        t, c = self.trace, Call(self.trace, CALL, "float32")
        options = arguments("attn_mask dropout_p is_causal scale enable_gqa", args, named)
        scale, attn_mask = options.get("scale"), options.get("attn_mask")
        enable_gqa, is_causal = options.get("enable_gqa"), options.get("is_causal")
        self.rounds, self.causal = False, bool(is_causal)
        shape = query.refresh().shape
        heads = t.size_of(key.dims[-3]) if enable_gqa else ONE
        groups = [heads, shape[-3] // heads] if enable_gqa else []
        if groups:
            query = regroup(query, [*shape[:-3], *groups, *shape[-2:]])
            key, value = (Value([*v.dims[:-2], (), *v.dims[-2:]], v.expr) for v in (key, value))
        if scale is None:
            scale = 1 / math.sqrt(t.constant(shape[-1]))
        turned = Value([*key.dims[:-2], key.dims[-1], key.dims[-2]], key.expr)
        scores = c.pointwise("mul", self.product(query, turned, "float32"), scale)
        scores = _heads(scores) if groups else scores
        if is_causal:
            scores = scores.refresh()
            visible = position(t, scores.dims[-1]) <= position(t, scores.dims[-2])
            scores = Value(scores.dims, where(visible, scores.expr, -math.inf))
        if attn_mask is not None:
            dims, (score, mask) = broadcast([scores, attn_mask])
            is_boolean = mask.dtype == "bool"
            scores = Value(dims, where(mask, score, -math.inf) if is_boolean else score + mask.wide())
        weights = self.softmax(scores, "float32")
        if groups:
            lengths = weights.refresh().shape
            weights = regroup(weights, [*lengths[:-3], *groups, *lengths[-2:]])
        result = self.product(weights.cast(value.dtype), value, out)
        return _heads(result) if groups else result


def lower_attention(
    region: Region, parameters: Sequence[Parameter], types: list[Types], orders: Sequence[tuple[int, ...]]
) -> Attention:
    """The region as an attention, see lower_region. Raises Unsupported."""
    low = _Lowering(region)
    return _finished(low, lower_region(region, parameters, "cuda", types, orders, low.lower).outputs[0])


def _heads(value: Value) -> Value:
    """Key heads and the queries of each as one dimension."""
    return Value([*value.dims[:-4], value.dims[-4] + value.dims[-3], *value.dims[-2:]], value.expr)


def _finished(low: _Lowering, output: Value) -> Attention:
    """All over present axes. Raises Unsupported for what the kernel's form does not hold."""
    t, n = low.trace, low.count
    if low.score is None or low.weight is None:
        raise Unsupported("matmul", "is no attention")
    query, key, value = map(t.resolve, low.operands)
    if any(e.dtype not in {*HALVES, "float32"} for e in (query, key, value)):
        raise Unsupported("matmul", f"attention in {query.dtype} is left to the library")
    score, weight, output = t.resolve(low.score.expr), t.resolve(low.weight), output.refresh()
    axes = {name: t.axes_of(dim) for name, dim in low.dims.items()}
    keys = t.axes_of(low.score.dims[-1])
    if keys != axes["columns"]:
        raise Unsupported("softmax", "is not taken over the keys")
    inner = weight
    while inner.kind == "op" and inner.data == "cast":
        inner = inner.args[0]
    if (inner.kind, inner.data) != ("load", n + 1):
        raise Unsupported("matmul", "the weights are changed before it")
    if (output.expr.kind, output.expr.data) != ("load", n + 2):
        raise Unsupported("matmul", "its result is changed")
    read = {e.data for part in (query, key, value) for e in parts(part) if e.kind == "load"}
    read |= {e.data for e in parts(score) if e.kind == "load" and e.data != n}
    if any(number >= n for number in read):
        raise Unsupported("matmul", "its operands are made of the scores")
    for part, roles in (
        (query, ("rows", "depth")),
        (key, ("columns", "depth")),
        (value, ("columns", "width")),
    ):
        others = {a for name, of in axes.items() if name not in roles for a in of}
        if part.axes & others or any(e.kind in ALONG for e in parts(part)):
            raise Unsupported("matmul", "an operand is read across the others' axes")
    if score.axes & {*axes["depth"], *axes["width"]} or any(e.kind in ALONG for e in parts(score)):
        raise Unsupported("softmax", "its scores are reduced")
    for e in parts(score):
        if e.kind == "load" and e.data < n and e.axes & set(axes["rows"]) and e.axes & set(keys):
            t.guard(f"{' * '.join(map(str, t.inputs[e.data]))} < 2**31")
    return Attention(
        t, query, key, value, score, weight, output, low.rounds, low.causal,
        axes["rows"], axes["columns"], axes["depth"], axes["width"], n,
    )  # fmt: skip
