"""Windows over images, element by element with the window written out: interpolation, pooling, convolutions.

A depthwise convolution is a handful of multiply-adds. In eager it is a kernel of its own, which adds in this
order in float32 from the bias on, and what follows has to read its result.

Any other is the library's. On a GPU it adds the bias in a kernel of its own, which reads and writes the whole
result again: the library is called without it, and the kernel behind adds it to what it reads.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
from dataclasses import dataclass
from typing import Any

from torch import fx

from passagent.expert.graph import ALL_CONVOLUTIONS, CONVOLUTIONS, POOLS, argument, example, op_name
from passagent.expert.lower.call import Call, arguments, broadcast, lowers, position, read_at, whole
from passagent.expert.lower.expressions import FLOATING, Axis, Expr, Value, apply
from passagent.expert.lower.formulas import fma, maximum, minimum, where
from passagent.expert.lower.symbolic_sizes import ONE, Size, as_size, fixed

LARGEST = 27
"""Elements of a window that is written out, at most."""


@lowers("interpolate", "upsample")
def interpolate(c: Call, input: Value, *args: Any, **named: Any) -> Value:
    names = "size scale_factor mode align_corners recompute_scale_factor antialias"
    options = {"mode": "nearest"} | arguments(names, args, named)
    mode, value = options["mode"], input
    spatial = len(value.dims) - 2
    is_known = mode == "nearest" or (mode == "bilinear" and spatial == 2)
    if not is_known or options.get("antialias"):
        raise c.fail(f"{mode} of {spatial} dimensions is left to the library")
    sizes = value.shape[2:]
    targets = [_target(c, have, options, k) for k, have in enumerate(sizes)]
    if [have.hint for have in sizes] == [target.hint for target, _ in targets]:
        for have, (target, _) in zip(sizes, targets, strict=True):
            c.trace.equal(have, target)
        return value  # the library copies: a weight of 0 would make NaN of an infinite neighbour
    for k, (have, (target, ratio)) in enumerate(zip(sizes, targets, strict=True)):
        if mode == "nearest":
            value = _nearest(c, value, 2 + k, have, target, ratio)
        else:
            value = _linear(c, value, 2 + k, (have, target), ratio, bool(options.get("align_corners")))
    return value.cast(c.out) if mode == "bilinear" else value


def _target(c: Call, have: Size, options: dict[str, Any], position: int) -> tuple[Size, float | None]:
    """The size along a dimension, and input elements for one of the output (None: by the two sizes)."""
    size, factor = options.get("size"), options.get("scale_factor")
    if size is not None:
        return as_size(size[position] if isinstance(size, tuple | list) else size), None
    by: Any = factor[position] if isinstance(factor, tuple | list) else factor
    text = f"({have} * {int(by)})" if by == int(by) else f"int({have} * {float(by)!r})"
    want = math.floor(have.hint * by)
    target = fixed(want) if have.constant else c.trace.size(want, text)
    return target, None if options.get("recompute_scale_factor") else 1.0 / by


def _nearest(c: Call, value: Value, dim: int, have: Size, target: Size, ratio: float | None) -> Value:
    """floor(i * have / target): whole factors only, where float32 has the quotient exactly."""
    t, axis = c.trace, c.trace.axis(target)
    value, _ = whole(value, dim)
    is_whole = ratio in (None, have.hint / target.hint)
    if is_whole and target.hint % have.hint == 0:
        return read_at(value, dim, axis, t.index(axis) // t.constant(target // have))
    if is_whole and have.hint % target.hint == 0:
        return read_at(value, dim, axis, t.index(axis) * t.constant(have // target))
    raise c.fail("by a factor that is not whole is left to the library")


def _linear(
    c: Call, value: Value, dim: int, sizes: tuple[Size, Size], ratio: float | None, corners: bool
) -> Value:
    """Both neighbours along a dimension, weighted; not rounded (bilinear rounds once)."""
    t, (have, target) = c.trace, sizes
    value, _ = whole(value, dim)
    axis = t.axis(target)
    if have.hint == 1:  # every neighbour is the one element
        t.equal(have, ONE)
        return read_at(value, dim, axis, t.integer(0))
    at, last = t.index(axis).cast("float32"), t.integer(have + -1)
    if corners:
        steps = t.number(target + -1, "float32")
        step = last.cast("float32") / steps if target.hint > 1 else t.number(0.0, "float32")
        t.guard(f"{target} > 1" if target.hint > 1 else f"{target} == 1")
        source = at * step
    else:
        exact = t.number(have, "float32") / t.number(target, "float32") if ratio is None else ratio
        source = maximum((at + 0.5) * exact - 0.5, 0.0)
    # in 32 bits, which every index fits: a GPU converts 64 bits at a quarter of the rate
    low = t.op("index_clamp", [source.cast("int32"), last], "int32")
    high = apply("index_clamp", t.op("index_add", [low, t.integer(1)], "int64"), last)
    weight = minimum(source - low.cast("float32"), 1.0)
    first, second = (read_at(value, dim, axis, near) for near in (low, high))
    return Value(first.dims, (1.0 - weight) * first.expr.wide() + weight * second.expr.wide())


@lowers(*POOLS)
def pool(c: Call, input: Value, kernel_size: Any, *args: Any, **named: Any) -> Value:
    is_max, t, spatial = c.op.startswith("max"), c.trace, int(c.op[-2])
    names = "stride padding ceil_mode count_include_pad divisor_override"
    options = arguments("stride padding dilation ceil_mode return_indices" if is_max else names, args, named)
    if options.get("return_indices") or options.get("divisor_override") is not None:
        raise c.fail("with indices or a divisor is left to the library")
    stride = options.get("stride") or kernel_size
    values = (kernel_size, stride, options.get("padding", 0), options.get("dilation", 1))
    sides = [numbers(c, v, spatial) for v in values]
    if math.prod(sides[0]) > LARGEST:
        raise c.fail(f"over more than {LARGEST} elements is left to the library")
    value, first = input, len(input.dims) - spatial
    neutral = -math.inf if is_max else 0.0
    along = []
    for k in range(spatial):
        size, by, edge, away = (side[k] for side in sides)
        have = value.shape[first + k]
        along.append(Along(c, have, size, by, edge, away, bool(options.get("ceil_mode"))))
        value = _window(value, first + k, along[-1], neutral)
    expr = value.expr
    if not is_max:
        padded, hangs = any(window.padding for window in along), any(window.over for window in along)
        if hangs and padded and options.get("count_include_pad", True):
            raise c.fail("by padding, but not by what hangs over it, is left to the library")
        elements = t.number(float(math.prod(sides[0])), expr.dtype)
        if hangs or (padded and not options.get("count_include_pad", True)):
            counts = [window.inside(position(t, value.dims[first + k])) for k, window in enumerate(along)]
            elements = functools.reduce(operator.mul, (n.cast(expr.dtype) for n in counts))
        expr = expr / elements
    return Value(value.dims, expr.stored(c.out, exact=is_max))


def numbers(c: Call, value: Any, count: int) -> list[int]:
    """`value` for each of `count` dimensions. Raises Unsupported where it is a text or a parameter."""
    values = list(value) if isinstance(value, tuple | list) else [value]
    values = values * count if len(values) == 1 else values
    if len(values) != count or any(not isinstance(v, int) for v in values):
        raise c.fail("with a window that is not known before the call")
    return values


@dataclass(frozen=True)
class Along:
    """Windows along one dimension of `have` elements, by the arguments of torch's poolings."""

    c: Call
    have: Size
    kernel_size: int
    stride: int
    padding: int
    dilation: int
    ceil_mode: bool = False
    """The last window may hang over the padding."""

    @property
    def span(self) -> int:
        return self.dilation * (self.kernel_size - 1) + 1

    @property
    def over(self) -> int:
        """Elements that the last window may hang over: it begins before the padding behind the elements."""
        room = self.have.hint + 2 * self.padding - self.span
        last = (room // self.stride + 1) * self.stride
        hangs = room % self.stride > 0 and last < self.have.hint + self.padding
        return self.stride - 1 if self.ceil_mode and hangs else 0

    def count(self) -> Size:
        """The number of the windows."""
        t, stride, text = self.c.trace, self.stride, str(self.have)
        rest = 2 * self.padding - self.span + self.over
        count = (self.have.hint + rest) // stride + 1
        t.guard(f"{text} > {self.padding}")
        if self.over:
            t.guard(f"({text} + {rest}) // {stride} * {stride} < {text} + {self.padding}")
        elif self.ceil_mode and (self.have.hint + rest) % stride == 0:
            t.guard(f"({text} + {rest}) % {stride} == 0")
        elif self.ceil_mode:
            t.guard(f"({text} + {rest}) // {stride} * {stride} + {stride} >= {text} + {self.padding}")
        if text.isdigit():
            return fixed(count)
        if stride == 1:
            return self.have + (rest + 1)
        return t.size(count, f"(({text} + {rest}) // {stride} + 1)")

    def places(self, window: Expr) -> list[tuple[Expr, Expr | None]]:
        """Where the elements of a window are read, and whether each place lies inside; None: it does."""
        last = self.c.trace.integer(self.have + -1)
        places: list[tuple[Expr, Expr | None]] = []
        for k in range(self.kernel_size):
            away = k * self.dilation - self.padding
            index = window * self.stride + away
            sides = [index >= 0] if away < 0 else []
            if away > self.span - 1 - 2 * self.padding - self.over:
                sides.append(index <= last)
            near = apply("index_clamp", index, last) if sides else index
            places.append((near, functools.reduce(operator.and_, sides) if sides else None))
        return places

    def inside(self, window: Expr) -> Expr:
        """How many elements of a window lie inside."""
        unit = self.c.trace.integer(1)
        counted = [unit if inside is None else inside.cast("int64") for _, inside in self.places(window)]
        return functools.reduce(operator.add, counted)


def _window(value: Value, dim: int, along: Along, neutral: float) -> Value:
    """Windows along one dimension, summed or their largest taken, in the compute type."""
    value, axis, places = windows(value, dim, along)
    total: Expr | None = None
    dims = value.dims
    for near, inside in places:
        read = read_at(value, dim, axis, near)
        part, dims = read.expr.wide(), read.dims
        part = part if inside is None else where(inside, part, neutral)
        total = part if total is None else apply("maximum" if neutral else "add", total, part)
    assert total is not None
    return Value(dims, total)


def windows(value: Value, dim: int, along: Along) -> tuple[Value, Axis, list[tuple[Expr, Expr | None]]]:
    """The value over one axis in this dimension, the axis of its windows, and their places."""
    value, _ = whole(value, dim)
    axis = value.trace.axis(along.count())
    return value, axis, along.places(value.trace.index(axis))


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
    return argument(node, 2, "bias")


def with_bias(c: Call, node: fx.Node, bias: Value) -> Value:
    """A convolution behind the library's, whose result is one more input."""
    shape = example(node).shape
    c.trace.library[len(c.trace.inputs)] = node
    return c.pointwise("add", c.trace.input(shape, c.out), _of_channels(bias, len(shape) - 2))


@lowers(*CONVOLUTIONS)
def depthwise(c: Call, input: Value, weight: Value, *args: Any, **named: Any) -> Value:
    options = arguments("bias stride padding dilation groups", args, named)
    bias = options.get("bias")
    if c.out not in FLOATING:
        raise c.fail("of integers is not lowered")
    t, spatial = c.trace, int(c.op[-2])
    defaults = {"stride": 1, "padding": 0, "dilation": 1}
    by, edge, dilations = (numbers(c, options.get(name, v), spatial) for name, v in defaults.items())
    channels, of_group, *window = weight.shape
    t.equal(as_size(options.get("groups", 1)), channels)
    t.equal(channels, input.shape[1])
    t.equal(of_group, ONE)
    sides = [t.constant(size) for size in window]
    value, axes, places = input, list[Axis](), list[list[tuple[Expr, Expr | None]]]()
    for k in range(spatial):
        side = Along(c, value.shape[2 + k], sides[k], by[k], edge[k], dilations[k])
        value, axis, along = windows(value, 2 + k, side)
        axes.append(axis)
        places.append(along)
    reads, weights, insides = list[Value](), list[Value](), list[list[Expr]]()
    for tap in itertools.product(*(range(len(along)) for along in places)):
        x, w = value, read_at(weight, 1, None, t.integer(0))
        for k, number in enumerate(tap):
            x = read_at(x, 2 + k, axes[k], places[k][number][0])
            w = read_at(w, 1, None, t.integer(number))
        reads.append(x)
        weights.append(_of_channels(w, spatial))
        insides.append([i for k, number in enumerate(tap) if (i := places[k][number][1]) is not None])
    first = [_of_channels(bias, spatial)] if bias is not None else []
    dims, widened = broadcast([*reads, *weights, *first])
    parts = [part.wide() for part in widened]
    total = parts[-1] if first else t.number(0.0, parts[0].dtype)
    for element, factor, inside in zip(parts, parts[len(reads) :], insides, strict=False):
        more = fma(factor, element, total)
        total = where(functools.reduce(operator.and_, inside), more, total) if inside else more
    return Value(dims, total.cast(c.out))


def _of_channels(vector: Value, spatial: int) -> Value:
    """One element for each channel, beside dimensions of an image."""
    return Value([*vector.dims, *[()] * spatial], vector.expr)
