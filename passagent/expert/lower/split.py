"""Operators without a template of the expert's: split as TorchInductor splits them, into ones that have one.

The decompositions run when a pass is written, on fake tensors with symbolic sizes. What comes out is lowered
like any other operator, so the pass holds one kernel and nothing of TorchInductor; the sizes that the
decompositions looked at become guards.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from passagent.expert.graph import HEAVY, arguments, example, mutates, op_name, replaced
from passagent.expert.lower import indexing, movement, pointwise, reductions, windows
from passagent.expert.lower.call import OPS, Call, check_shape, wrap
from passagent.expert.lower.expressions import HALF, HALVES, Trace, Value
from passagent.expert.lower.symbolic_sizes import Size, Unsupported, as_size, fixed

if TYPE_CHECKING:
    import sympy

_REGISTERED = (indexing, movement, pointwise, reductions, windows)
"""The modules whose lowerings OPS holds."""

_KEPT = "split"
"""Where a node's meta keeps what its operator was split into."""
_LIMITS = {
    limit
    for dtype in (*HALF, torch.float32, torch.float64)
    for limit in (torch.finfo(dtype).max, torch.finfo(dtype).eps, torch.finfo(dtype).tiny)
}
_ABOUT_TENSORS = {"dtype", "layout", "device", "pin_memory", "requires_grad", "memory_format", "non_blocking"}
"""Keywords that say what a result is like: the trace knows."""


@dataclass(frozen=True)
class Split:
    """The parts of an operator."""

    graph: fx.Graph
    """Over ATen operators and sizes; a placeholder for each tensor, in the order of `all_input_nodes`."""
    symbols: list[list[sympy.Expr]]
    """The sizes of each of the tensors."""
    conditions: list[sympy.Expr]
    """On the sizes, that tracing relied on."""


def holds_for_one_dtype(node: fx.Node) -> bool:
    """Tell whether an operator of a region was split into parts that hold a limit of its dtype."""
    stored = node.meta.get(_KEPT)
    return isinstance(stored, Split) and any(
        isinstance(value, float) and abs(value) in _LIMITS
        for part in stored.graph.nodes
        for _, value in arguments(part)
    )


def split(node: fx.Node) -> Split:
    """The parts of an operator, kept with its node. Raises Unsupported if it cannot be taken apart."""
    if _KEPT not in node.meta:
        try:
            node.meta[_KEPT] = _traced(node)
        except Unsupported as refused:
            node.meta[_KEPT] = refused
    stored = node.meta[_KEPT]
    if isinstance(stored, Unsupported):
        raise stored
    return stored  # type: ignore[no-any-return]


def _traced(node: fx.Node) -> Split:
    """Take an operator apart on fake tensors of symbolic sizes. Raises Unsupported if that fails."""
    # These imports take seconds, and few operators need them.
    import sympy
    from torch._inductor.decomposition import select_decomp_table
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.func import functionalize
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

    name = op_name(node)
    if mutates(node) is not None:
        raise Unsupported(name, "has no lowering, and writes into its input")
    tensors = [example(source) for source in node.all_input_nodes]
    if not tensors or not all(isinstance(t, torch.Tensor) for t in tensors):
        raise Unsupported(name, "has no lowering")
    sizes = ShapeEnv(duck_shape=False, specialize_zero_one=False)
    mode = FakeTensorMode(shape_env=sizes)
    dynamic: list[StatelessSymbolicContext[Any, Any]] = [
        StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC] * t.dim()) for t in tensors
    ]
    shaped = [torch.empty(t.shape, dtype=t.dtype) for t in tensors]
    fakes = [mode.from_tensor(t, symbolic_context=how) for t, how in zip(shaped, dynamic, strict=True)]
    symbols = [  # as they are before any is replaced
        [n.node.expr if isinstance(n, torch.SymInt) else sympy.Integer(n) for n in fake.shape]
        for fake in fakes
    ]
    places = {source: k for k, source in enumerate(node.all_input_nodes)}

    def call(*values: Any) -> Any:
        def leaf(_: Any, value: Any) -> Any:
            return values[places[value]] if isinstance(value, fx.Node) else value

        args, kwargs = replaced(node, leaf)
        if node.op == "call_method":
            return getattr(args[0], str(node.target))(*args[1:], **kwargs)
        return node.target(*args, **kwargs)  # type: ignore[operator]

    try:
        with mode:
            traced = make_fx(functionalize(call), select_decomp_table(), tracing_mode="symbolic")(*fakes)
    except Exception as error:  # a decomposition may fail in any way
        raise Unsupported(name, f"has no lowering, and is not split ({type(error).__name__})") from error
    traced.graph.eliminate_dead_code()
    return Split(traced.graph, symbols, [guard.expr for guard in sizes.guards])


def lower_split(
    trace: Trace, node: fx.Node, env: dict[fx.Node, Any], name_of: Callable[[torch.dtype], str]
) -> Any:
    """The Value (or tuple of them) of an operator, by its parts. `name_of`: dtypes as they are called here.

    As in TorchInductor's kernels 16-bit values are rounded at the end only. Raises Unsupported.
    """
    split_node, op = split(node), op_name(node)
    values = [env[source] for source in node.all_input_nodes]
    _rely_on(trace, split_node, values)
    inner: dict[Any, Any] = dict(zip(split_node.graph.find_nodes(op="placeholder"), values, strict=True))
    for part in split_node.graph.nodes:
        args, kwargs = replaced(part, lambda _, leaf: inner.get(leaf, leaf))
        if part.op == "output":
            return _rounded(part.args[0], args[0], name_of)
        if part.op not in {"placeholder", "call_function"}:
            raise Unsupported(op, f"consists of {part.name}, among others")
        if part.op == "call_function":
            on_sizes = _ON_SIZES.get(part.target)
            inner[part] = on_sizes(*args) if on_sizes else _lowered(trace, op, part, args, kwargs, name_of)
        if part.target is torch.ops.aten.copy_.default:
            if part.args[0].op == "placeholder":
                raise Unsupported(op, "has no lowering, and writes into its input")
            inner[part.args[0]] = inner[part]
    raise Unsupported(op, "gives nothing")


def _rounded(part: Any, result: Any, name_of: Callable[[torch.dtype], str]) -> Any:
    """The last part's results, in the dtypes of the operator's results."""
    if isinstance(part, tuple | list):
        return tuple(_rounded(*pair, name_of) for pair in zip(part, result, strict=True))
    return result.cast(name_of(part.meta["val"].dtype))


def _lowered(
    trace: Trace, op: str, part: fx.Node, args: Any, named: Any, name_of: Callable[[torch.dtype], str]
) -> Any:
    """The Value of an ATen operator."""
    name = getattr(getattr(part.target, "overloadpacket", None), "__name__", part.name)
    lowering = _ATEN.get(name) or OPS.get(name)
    traced = part.meta.get("val")
    first = traced[0] if isinstance(traced, tuple | list) and traced else traced
    if lowering is None or name in HEAVY or not isinstance(first, torch.Tensor):
        raise Unsupported(op, f"consists of {name}, among others, which has no lowering")
    out = name_of(first.dtype)
    call = Call(trace, name, "float32" if out in HALVES else out)
    args = [arg.refresh() if isinstance(arg, Value) else arg for arg in args]
    result = lowering(call, *args, **{key: v for key, v in named.items() if key not in _ABOUT_TENSORS})
    check_shape(op, result, traced)
    return result


def _rely_on(trace: Trace, parts: Split, values: list[Value]) -> None:
    """The conditions on sizes as guards."""
    import sympy
    from torch.utils._sympy.printers import PythonPrinter

    texts: dict[sympy.Expr, sympy.Symbol] = {}
    for symbols, value in zip(parts.symbols, values, strict=True):
        for symbol, size in zip(symbols, value.refresh().shape, strict=True):
            if symbol.is_Symbol:
                texts[symbol] = sympy.Symbol(str(size), integer=True)
            else:
                trace.equal(size, int(symbol))
    for condition in parts.conditions:
        trace.guard(PythonPrinter().doprint(condition.xreplace(texts)))


def _quotient(a: Any, b: Any) -> Size:
    """a // b, whatever is left."""
    x, y = as_size(a), as_size(b)
    if x.constant and y.constant:
        return fixed(x.hint // y.hint)
    return x if y.text == "1" else Size(x.hint // y.hint, f"({x} // {y})", x.facts or y.facts)


_ON_SIZES: dict[Any, Callable[..., Size]] = {
    torch.ops.aten.sym_size.int: lambda value, dim: value.refresh().shape[dim],
    operator.add: lambda a, b: as_size(a) + b,
    operator.sub: lambda a, b: as_size(a) - b,
    operator.floordiv: _quotient,
    operator.mul: lambda a, b: as_size(a) * b,
}


def _slice(c: Call, x: Value, dim: int = 0, start: Any = None, end: Any = None, step: Any = 1) -> Any:
    whole = [slice(None)] * len(x.dims)
    whole[wrap(dim, len(x.dims))] = slice(start, None if end == sys.maxsize else end, step)
    return OPS["getitem"](c, x, tuple(whole))


def _copied(c: Call, x: Value, values: Value, *_: Any) -> Value:
    """`values` in place of those of `x`."""
    return OPS["expand"](Call(c.trace, c.op, values.dtype), OPS["to"](c, values), x.shape)


def _on_bools(name: str) -> Callable[..., Any]:
    def lower(c: Call, a: Any, b: Any) -> Any:
        if c.out != "bool":
            return OPS[name](c, a, b)
        return c.pointwise("and" if name == "mul" else name, a, b, common="bool", out="bool")

    return lower


_ATEN: dict[str, Callable[..., Any]] = {
    "slice": _slice,
    "index": lambda c, x, at: OPS["getitem"](c, x, tuple(slice(None) if i is None else i for i in at)),
    "iota": lambda c, length, *, start, step: OPS["arange"](c, start, as_size(length) * step + start, step),
    "copy": _copied,
    "copy_": _copied,
    "scalar_tensor": lambda c, value: c.constant(value),
    "convert_element_type": OPS["to"],
    "_to_copy": OPS["to"],
    "constant_pad_nd": lambda c, x, pad, value=0: OPS["pad"](c, x, pad, "constant", value),
    "rev": OPS["flip"],
    "clamp_min": OPS["maximum"],
    "clamp_max": OPS["minimum"],
    "mul": _on_bools("mul"),
    "bitwise_and": _on_bools("and"),
    "bitwise_or": _on_bools("or"),
    "full": lambda c, size, value: OPS["expand"](c, c.constant(value), size),
    "alias": lambda c, x: x,
    "lift_fresh_copy": lambda c, x: x,
}
"""ATen's and prims' operators that are called otherwise, or with other arguments, than torch's functions."""
