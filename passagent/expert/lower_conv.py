"""Convolutions: depthwise ones element by element with the window written out, of any other the bias.

A depthwise one is a handful of multiply-adds. In eager it is a kernel of its own, which adds in this order in
float32 from the bias on, and what follows has to read its result.

Any other is the library's. On a GPU it adds the bias in a kernel of its own, which reads and writes the whole
result again: the library is called without it, and the kernel behind adds it to what it reads.
"""

from __future__ import annotations

import functools
import itertools
import math
from typing import Any

from torch import fx

from passagent.expert.expressions import ONE, Axis, Expr, Value, fixed
from passagent.expert.graph import ALL_CONVOLUTIONS, CONVOLUTIONS, example, op_name
from passagent.expert.lower_pool import LARGEST, Along, numbers, windows
from passagent.expert.lowering import FLOATING, Call, lowers
from passagent.expert.shapes import as_size, broadcast, read_at


def is_written_out(node: fx.Node) -> bool:
    """Tell whether an operator is such a convolution, of a small window."""
    tensors = [a for a in node.args[:2] if isinstance(a, fx.Node)]
    if op_name(node) not in CONVOLUTIONS or node.meta.get("library_only") or len(tensors) < 2:
        return False
    x, weight = (example(a).shape for a in tensors)
    batched = len(x) == len(weight) == int(op_name(node)[-2]) + 2
    return batched and x[1] == weight[0] > weight[1] == 1 and math.prod(weight[2:]) <= LARGEST


def comes_first(node: fx.Node, target: str) -> bool:
    """Tell whether the library computes a convolution without its bias before a kernel that adds it."""
    if target != "cuda" or op_name(node) not in ALL_CONVOLUTIONS or is_written_out(node):
        return False
    tensors = [*node.args[:2], bias_of(node)]
    if len(tensors) < 3 or not all(isinstance(a, fx.Node) for a in tensors):
        return False
    batched = example(node).dim() == int(op_name(node)[-2]) + 2
    lies = all(example(a).is_contiguous() for a in [node, *node.all_input_nodes])
    return batched and lies and not any(isinstance(a, str) for a in [*node.args, *node.kwargs.values()])


def is_computed(node: fx.Node) -> bool:
    """Tell whether a kernel computes an operator, and not the library before it."""
    return op_name(node) not in ALL_CONVOLUTIONS or is_written_out(node)


def bias_of(node: fx.Node) -> Any:
    """The bias that a convolution is given."""
    return node.args[2] if len(node.args) > 2 else node.kwargs.get("bias")


def with_bias(c: Call, node: fx.Node, bias: Value) -> Value:
    """A convolution behind the library's, whose result is one more input."""
    shape = example(node).shape
    c.trace.library[len(c.trace.inputs)] = node
    return c.pointwise("add", c.trace.input(shape, c.out), _of_channels(bias, len(shape) - 2))


@lowers(*CONVOLUTIONS)
def depthwise(
    c: Call,
    input: Value,
    weight: Value,
    bias: Value | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: Any = 1,
) -> Value:
    if c.out not in FLOATING:
        raise c.fail("of integers is not lowered")
    t, spatial = c.trace, int(c.op[-2])
    by, edge, dilations = (numbers(c, v, spatial) for v in (stride, padding, dilation))
    channels, of_group, *window = t.shape(t.refresh(weight))
    for size, expected in zip(
        [as_size(groups), channels, of_group], [channels, t.shape(input)[1], ONE], strict=True
    ):
        t.equal(size, expected)
    for size in window:
        t.equal(size, fixed(size.hint))
    value, axes, places = input, list[Axis](), list[list[tuple[Expr, Expr | None]]]()
    for k in range(spatial):
        side = Along(c, t.size_of(value.dims[2 + k]), window[k].hint, by[k], edge[k], dilations[k])
        value, axis, along = windows(c, value, 2 + k, side)
        axes.append(axis)
        places.append(along)
    reads, weights, insides = list[Value](), list[Value](), list[list[Expr]]()
    for tap in itertools.product(*(range(len(along)) for along in places)):
        x, w = value, read_at(t, weight, 1, None, t.integer(0))
        for k, number in enumerate(tap):
            x = read_at(t, x, 2 + k, axes[k], places[k][number][0])
            w = read_at(t, w, 1, None, t.integer(number))
        reads.append(x)
        weights.append(_of_channels(w, spatial))
        insides.append([i for k, number in enumerate(tap) if (i := places[k][number][1]) is not None])
    first = [_of_channels(bias, spatial)] if bias is not None else []
    dims, widened = broadcast(t, [*reads, *weights, *first])
    parts = [c.wide(part) for part in widened]
    total = parts[-1] if first else c.number(0.0, parts[0].dtype)
    for element, factor, inside in zip(parts, parts[len(reads) :], insides, strict=False):
        more = c.e("fma", factor, element, total)
        total = t.op("where", [_all(c, inside), more, total], total.dtype) if inside else more
    return Value(dims, c.finish(total, c.out))


def _of_channels(vector: Value, spatial: int) -> Value:
    """One element for each channel, beside dimensions of an image."""
    return Value([*vector.dims, *[()] * spatial], vector.expr)


def _all(c: Call, conditions: list[Expr]) -> Expr:
    return functools.reduce(lambda a, b: c.trace.op("and", [a, b], "bool"), conditions)
