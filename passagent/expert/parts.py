"""An operator taken apart by torch's decompositions, for any size: what split.py lowers.

Apart from it for its imports, which take seconds.
"""

from __future__ import annotations

from typing import Any

import sympy
import torch
from torch import fx
from torch._inductor.decomposition import select_decomp_table
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from torch.utils._sympy.printers import PythonPrinter

from passagent.expert.expressions import Unsupported
from passagent.expert.graph import example, mutates, op_name, rebuild


def traced(node: fx.Node) -> tuple[fx.Graph, list[list[sympy.Expr]], list[sympy.Expr]]:
    """The operator as a graph of parts, the sizes of its tensors, and conditions on them: see Split.

    Raises Unsupported if it cannot be taken apart.
    """

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
    symbols = [[_expression(n) for n in fake.shape] for fake in fakes]  # as they are before any is replaced
    places = {source: k for k, source in enumerate(node.all_input_nodes)}

    def call(*values: Any) -> Any:
        def leaf(_: Any, value: Any) -> Any:
            return values[places[value]] if isinstance(value, fx.Node) else value

        args, kwargs = (rebuild(original, leaf, ()) for original in (node.args, node.kwargs))
        if node.op == "call_method":
            return getattr(args[0], str(node.target))(*args[1:], **kwargs)
        return node.target(*args, **kwargs)  # type: ignore[operator]

    try:
        with mode:
            parts = make_fx(functionalize(call), select_decomp_table(), tracing_mode="symbolic")(*fakes)
    except Exception as error:  # a decomposition may fail in any way
        raise Unsupported(name, f"has no lowering, and is not split ({type(error).__name__})") from error
    parts.graph.eliminate_dead_code()
    return parts.graph, symbols, [guard.expr for guard in sizes.guards]


def _expression(size: Any) -> sympy.Expr:
    return size.node.expr if isinstance(size, torch.SymInt) else sympy.Integer(size)


def written(condition: sympy.Expr, names: dict[sympy.Expr, str]) -> str:
    """A condition in Python, with the sizes by these names."""
    symbols = {symbol: sympy.Symbol(name, integer=True) for symbol, name in names.items()}
    return str(PythonPrinter().doprint(condition.xreplace(symbols)))
