"""An attention's operators as expressions: its operands, its scores, and where its result is stored.

What a product or the softmax gives is read like an input by what follows. Sizes, views and pointwise
operators are lowered as anywhere else, so that any bias, mask, scale or grouping of heads is an index or an
expression.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from passagent.expert.graph import CALL, FREE_VIEWS, IDENTITIES, PRODUCTS, argument, example, op_name, words
from passagent.expert.lower import Parameter, Region, Types, lower_region
from passagent.expert.lower.call import Call, arguments, broadcast, fit, position, regroup, renamed, wrap
from passagent.expert.lower.expressions import HALVES, Axis, Expr, Trace, Value, parts
from passagent.expert.lower.formulas import where
from passagent.expert.lower.symbolic_sizes import ONE, Unsupported

ONE_BLOCK = 128
"""Keys that are read at once, at most. More of them, without a mask, are the library's work."""
_VIEWS = FREE_VIEWS | IDENTITIES | {"half", "bfloat16", "type", "repeat_interleave", "repeat"}
"""Operators that read at other indices or in another type."""
_BEHIND = FREE_VIEWS - words("getitem chunk split tensor_split unbind select narrow")
_BEHIND |= words("contiguous dropout")
"""Operators that only move the result."""
_NUMBERS = {"mul", "div", "truediv", "imul", "itruediv", "__mul__", "__truediv__"}
"""Operators that scale queries or keys by a number."""
_BIAS = _VIEWS | _NUMBERS | words("add sub rsub iadd masked_fill where eq ne invert logical_not")
"""Operators that are computed anew for each head where they make a bias or mask."""
_SCORES = _BIAS | {"masked_fill_", "add_", "mul_", "div_", "tanh", "clamp", "maximum", "nan_to_num"}
"""Operators on the scores between the first product and the softmax."""
_WEIGHTS = _VIEWS - {"repeat_interleave", "repeat", "getitem", "chunk", "split", "unbind", "tensor_split"}
"""Operators on the weights between the softmax and the second product."""


def is_attention(region: Region) -> bool:
    """Tell whether `attention_nodes` found the region: no other region for a GPU holds a product."""
    return any(op_name(node) in PRODUCTS | {CALL} for node in region.nodes)


def attention_nodes(graph: fx.Graph, inside: set[fx.Node], without: Iterable[str]) -> Iterator[list[fx.Node]]:
    """The operators of each attention, in the graph's order. `inside`: what can be lowered on its own."""
    for node in list(graph.nodes):
        core = _core(node, inside)
        if core is None or not {op_name(n) for n in core}.isdisjoint(without):
            continue
        nodes = _with_sides(core, inside)
        if all(u in nodes for n in core[:-1] for u in n.users):
            last = core[-1]
            while len(last.users) == 1:  # what only moves the result
                last = next(iter(last.users))
                if last not in inside or op_name(last) not in _BEHIND or len(last.all_input_nodes) != 1:
                    break
                nodes.add(last)
            yield [n for n in graph.nodes if n in nodes]


def _core(node: fx.Node, inside: set[fx.Node]) -> list[fx.Node] | None:
    """From the first product to the second, in order."""
    if node.op not in {"call_function", "call_method"}:
        return None
    if op_name(node) == CALL:
        return [node] if _is_taken(node) else None
    if op_name(node) != "softmax" or node not in inside:
        return None
    before = _scores(node.all_input_nodes[0], inside)
    behind = _weights(node, inside)
    return [*before, node, *behind] if before and behind else None


def _is_taken(node: fx.Node) -> bool:
    """Tell whether a call drops nothing, and the library has no kernel made for just that."""
    dropout = argument(node, 4, "dropout_p", 0.0)
    tensors = [example(n) for n in node.all_input_nodes]
    if dropout != 0.0 or not all(isinstance(t, torch.Tensor) for t in tensors):
        return False
    if any(t.dim() < 2 or 0 in t.shape for t in tensors[:3]):
        return False
    mask, key = argument(node, 3, "attn_mask"), argument(node, 1, "key")
    return mask is not None or (isinstance(key, fx.Node) and example(key).shape[-2] <= ONE_BLOCK)


def _scores(node: fx.Node, inside: set[fx.Node]) -> list[fx.Node]:
    """The way from the first product to a softmax's input; empty: there is none."""
    if op_name(node) in PRODUCTS:
        return [node] if len(node.args) == 2 and not node.kwargs else []
    if node not in inside or op_name(node) not in _SCORES:
        return []
    ways = [way for source in node.all_input_nodes if (way := _scores(source, inside))]
    return [*ways[0], node] if len(ways) == 1 else []


def _weights(node: fx.Node, inside: set[fx.Node]) -> list[fx.Node]:
    """The way from a softmax to the second product, which is not empty where there is one."""
    way: list[fx.Node] = []
    while len(node.users) == 1:
        user = next(iter(node.users))
        if op_name(user) in PRODUCTS:
            is_left = len(user.args) == 2 and not user.kwargs and user.args[0] is node
            return [*way, user] if is_left and user.args[1] is not node else []
        if user not in inside or op_name(user) not in _WEIGHTS or user.args[0] is not node:
            return []
        way.append(user)
        node = user
    return []


def _with_sides(core: list[fx.Node], inside: set[fx.Node]) -> set[fx.Node]:
    """The core with what only it reads: views and numbers around its operands, and how a bias is made."""
    nodes, before = set(core), 0
    allowed: dict[fx.Node, frozenset[str]] = {}
    for node in core:
        for place, source in enumerate(node.all_input_nodes):
            operand = op_name(node) in PRODUCTS or (op_name(node) == CALL and place < 3)
            allowed[source] = (_VIEWS | _NUMBERS) if operand else _BIAS
    while before != len(nodes):
        before = len(nodes)
        for node, names in list(allowed.items()):
            name = op_name(node)
            if node in nodes or node not in inside or name not in names:
                continue
            is_scale = names is not _BIAS and name in _NUMBERS
            of_one = is_scale or name in {"getitem", "repeat", "repeat_interleave"}
            if of_one and len(node.all_input_nodes) != 1:
                continue
            if all(user in nodes for user in node.users):
                nodes.add(node)
                allowed.update({source: names for source in node.all_input_nodes if source not in allowed})
    return nodes


@dataclass
class Attention:
    """An attention over present axes."""

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
    axes: dict[str, list[Axis]]
    """The axes of queries (`rows`), of keys (`columns`), and what the products sum over: `depth`, `width`."""
    count: int
    """Inputs of the region; what the first product, the softmax and the second product give follows."""


class _Lowering:
    """Lowers products and the softmax, and keeps what they are made of."""

    def __init__(self) -> None:
        self.operands: list[Expr] = []
        self.dims: dict[str, tuple[Axis, ...]] = {}
        self.score: Value | None = None
        self.weight: Expr | None = None
        self.rounds, self.causal = True, False

    def product(self, c: Call, left: Value, right: Value) -> Value:
        """left @ right: the first one of an attention, then the second."""
        t = c.trace
        if len(left.dims) < 2 or len(right.dims) < 2:
            raise c.fail("multiplies by a vector")
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
        return _given(c, [*dims[:-1], left.dims[-2], right.dims[-1]])

    def softmax(self, c: Call, scores: Value, dim: Any = None, *_: Any, **named: Any) -> Value:
        if not isinstance(dim, int) or wrap(dim, len(scores.dims)) != len(scores.dims) - 1:
            raise c.fail("is not taken over the keys")
        self.score = scores.refresh()
        return _given(c, self.score.dims)

    def call(self, c: Call, query: Value, key: Value, value: Value, *args: Any, **named: Any) -> Value:
        """scaled_dot_product_attention: eager stores neither scores nor weights."""
        t, single = c.trace, Call(c.trace, CALL, "float32")
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
        scores = single.pointwise("mul", self.product(single, query, turned), scale)
        scores = _heads(scores) if groups else scores
        if is_causal:
            scores = scores.refresh()
            visible = position(t, scores.dims[-1]) <= position(t, scores.dims[-2])
            scores = Value(scores.dims, where(visible, scores.expr, -math.inf))
        if attn_mask is not None:
            dims, (score, mask) = broadcast([scores, attn_mask])
            is_boolean = mask.dtype == "bool"
            scores = Value(dims, where(mask, score, -math.inf) if is_boolean else score + mask.wide())
        weights = self.softmax(single, scores, -1)
        if groups:
            lengths = weights.refresh().shape
            weights = regroup(weights, [*lengths[:-3], *groups, *lengths[-2:]])
        result = self.product(c, weights.cast(value.dtype), value)
        return _heads(result) if groups else result


def _given(c: Call, dims: list[tuple[Axis, ...]]) -> Value:
    """A value that is read like an input."""
    dims = [tuple(c.trace.axes_of(d)) for d in dims]
    return Value(dims, c.trace.read([axis for dim in dims for axis in dim], c.out))


def _heads(value: Value) -> Value:
    """Key heads and the queries of each as one dimension."""
    return Value([*value.dims[:-4], value.dims[-4] + value.dims[-3], *value.dims[-2:]], value.expr)


def lower_attention(
    region: Region, parameters: Sequence[Parameter], types: list[Types], orders: Sequence[tuple[int, ...]]
) -> Attention:
    """The region as an attention, over present axes: see lower_region.

    Raises Unsupported, also for what the kernel's form does not hold.
    """
    low, overrides = _Lowering(), dict[fx.Node, Callable[..., Any]]()
    overrides |= {n: low.product for n in region.nodes if op_name(n) in PRODUCTS}
    overrides |= {n: low.call for n in region.nodes if op_name(n) == CALL}
    overrides |= dict.fromkeys([n for n in region.nodes if op_name(n) == "softmax"][-1:], low.softmax)
    lowered, n = lower_region(region, parameters, "cuda", types, orders, overrides), len(region.inputs)
    t, (output,) = lowered.trace, lowered.outputs
    assert low.score is not None
    assert low.weight is not None
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
    names = {query: "rows depth", key: "columns depth", value: "columns width", score: "rows columns"}
    for part, roles in names.items():
        others = {a for name, of in axes.items() if name not in roles.split() for a in of}
        if part.axes & others or any(e.kind == "reduce" for e in parts(part)):
            op = "softmax" if part is score else "matmul"
            raise Unsupported(op, "what it takes is reduced, or runs along an axis of something else")
    for e in parts(score):
        if e.kind == "load" and e.data < n and e.axes & set(axes["rows"]) and e.axes & set(keys):
            t.guard(f"{' * '.join(map(str, t.inputs[e.data]))} < 2**31")
    return Attention(t, query, key, value, score, weight, output, low.rounds, low.causal, axes, n)
