"""Dependencies of a captured graph's nodes through memory, besides the values they pass on.

Dynamo's graphs hold in-place operators, stores and views. Moving an operator past another is safe only if
neither writes what the other touches. The analysis errs on the side of a dependency.
"""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Iterable
from typing import Any

import torch
from torch import fx

from passagent.evaluator.matching.pattern import INPLACE, nodes_in

_INPLACE_OPERATORS = {*INPLACE.values(), operator.setitem}
_VIEWS = {
    "view", "view_as", "transpose", "permute", "t", "T", "mT", "H", "mH", "adjoint", "expand", "expand_as",
    "unsqueeze", "squeeze", "getitem", "__getitem__", "getattr", "detach", "chunk", "split", "tensor_split",
    "unbind", "narrow", "select", "diagonal", "unfold", "movedim", "moveaxis", "swapaxes", "swapdims",
    "as_strided", "unflatten", "split_with_sizes", "hsplit", "vsplit", "dsplit", "alias", "real", "imag",
    "view_as_real", "view_as_complex", "broadcast_to", "_getitem",
}  # fmt: skip
"""Always a view, or what a replacement returned (rewrite.py): reads no element."""
_MAYBE_VIEWS = {
    "reshape", "reshape_as", "flatten", "ravel", "contiguous", "to", "type", "type_as", "float", "half",
    "double", "bfloat16", "long", "int", "short", "char", "bool", "cpu", "cuda", "as_tensor", "dropout",
    "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_dropout", "broadcast_tensors",
    "meshgrid", "atleast_1d", "atleast_2d", "atleast_3d", "einsum", "expand_copy", "positive", "pos", "pad",
    "interpolate", "adaptive_avg_pool2d", "tile",
}  # fmt: skip
"""A view or a copy, by the arguments and shapes."""
_RANDOM = {
    "rand", "randn", "randint", "randperm", "rand_like", "randn_like", "randint_like", "bernoulli",
    "multinomial", "normal", "poisson", "rrelu", "gumbel_softmax",
}  # fmt: skip
_SILENT = {"_set_grad_enabled", "_log_api_usage_once", "lazy_load_decompositions"}
_NEW_VALUES = {"and_", "or_", "not_", "is_"}
"""Names of the module operator: a word of Python with an underscore, and not an operator in place."""
_RANDOM_STATE = "random state"


def name_of(node: fx.Node) -> str:
    """`add` for operator.add, torch.add and x.add alike."""
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))


def written(node: fx.Node) -> list[fx.Node]:
    """The arguments whose memory the node writes."""
    if node.op not in ("call_function", "call_method"):
        return []
    if "writes" in node.meta:
        return [node.args[i] for i in node.meta["writes"] if isinstance(node.args[i], fx.Node)]  # type: ignore[misc]
    name, values = name_of(node), list(node.args)
    arguments: list[Any] = [node.kwargs.get("out")]
    if (
        node.target in _INPLACE_OPERATORS
        or (name.endswith("_") and not name.endswith("__") and name not in _NEW_VALUES)
        or (
            name.startswith("__i")
            and name.endswith("__")
            and name not in ("__invert__", "__index__", "__int__")
        )
    ):
        arguments += values[:1]
    elif _argument(node, "inplace") is True:
        arguments += values[:1] or [node.kwargs.get("input")]
    if name in ("batch_norm", "instance_norm") and (
        _argument(node, "training") or _argument(node, "use_input_stats")
    ):
        arguments += [_argument(node, "running_mean"), _argument(node, "running_var")]
    if name == "embedding" and _argument(node, "max_norm") is not None:
        arguments.append(_argument(node, "weight"))
    return [value for item in arguments for value in nodes_in(item)]


def is_pure(node: fx.Node) -> bool:
    """No effect but its value: it may be left out when nobody uses it."""
    if node.op == "get_attr":
        return True
    if node.op not in ("call_function", "call_method") or "writes" in node.meta:
        return False
    name = name_of(node)
    checks = name.startswith(("_assert", "_check")) or name in _SILENT
    return not (written(node) or is_random(node) or checks)


def transformed(graph: fx.Graph) -> set[fx.Node]:
    """The nodes inside a transform of torch.func (vmap, grad, jvp), whose tensors have no addresses."""
    inside, depth = set[fx.Node](), 0
    for node in graph.nodes:
        depth += name_of(node).endswith("_increment_nesting")
        if depth:
            inside.add(node)
        depth -= name_of(node).endswith("_decrement_nesting")
    return inside


class Memory:
    """Dependencies of a graph's nodes: `before[n]` must run before n, for its values or its memory."""

    def __init__(self, graph: fx.Graph) -> None:
        self.order = list(graph.nodes)
        self.position = {node: i for i, node in enumerate(self.order)}
        self.transformed = transformed(graph)
        self.before: dict[fx.Node, set[fx.Node]] = {}
        self.through_memory: dict[fx.Node, set[fx.Node]] = {}
        self.roots: dict[fx.Node, frozenset[Any]] = {}
        writer: dict[Any, fx.Node] = {}
        readers: dict[Any, list[fx.Node]] = {}
        for node in graph.nodes:
            self.roots[node] = self._roots(node)
            reads, writes = self._touched(node)
            memory: set[fx.Node] = set()
            for root in reads | writes:
                if root in writer:
                    memory.add(writer[root])
            for root in writes:
                memory.update(readers.get(root, ()))
                writer[root], readers[root] = node, []
            for root in reads - writes:
                readers.setdefault(root, []).append(node)
            memory.discard(node)
            self.through_memory[node] = memory
            self.before[node] = memory | set(node.all_input_nodes)

    def writes(self, nodes: Iterable[fx.Node]) -> frozenset[Any]:
        """Memory that the nodes write."""
        return frozenset(root for node in nodes for value in written(node) for root in self.roots[value])

    def _roots(self, node: fx.Node) -> frozenset[Any]:
        name = name_of(node)
        sources: list[fx.Node] = []
        if node.op in ("call_function", "call_method"):
            if "writes" in node.meta or name in _MAYBE_VIEWS:
                sources = node.all_input_nodes
            elif name in _VIEWS:
                sources = node.all_input_nodes[:1]
            else:
                sources = written(node)
        roots = frozenset(root for source in sources for root in self.roots[source])
        return roots if roots and "writes" not in node.meta else roots | {node}

    def _touched(self, node: fx.Node) -> tuple[frozenset[Any], frozenset[Any]]:
        """Memory that the node reads, and that it writes."""
        if node.op in ("placeholder", "get_attr"):
            return frozenset(), frozenset()
        writes = self.writes([node])
        if node.op != "output" and is_random(node):
            writes |= {_RANDOM_STATE}
        if node.op != "output" and name_of(node) in _VIEWS:
            return frozenset(), writes
        return frozenset(root for value in node.all_input_nodes for root in self.roots[value]), writes


def is_random(node: fx.Node) -> bool:
    """Tell whether the node takes random numbers."""
    name = name_of(node)
    if "dropout" in name:
        return _argument(node, "training") not in (False, None)
    if name == "scaled_dot_product_attention":
        return _argument(node, "dropout_p") not in (0, 0.0, None)
    return name.rstrip("_") in _RANDOM


def _argument(node: fx.Node, name: str) -> Any:
    """The value of the parameter `name` of a Python function of torch, its default if not given."""
    if name in node.kwargs:
        return node.kwargs[name]
    if node.op != "call_function":
        return None
    parameters = _parameters(node.target)
    if name not in parameters:
        return None
    at = list(parameters).index(name)
    return node.args[at] if at < len(node.args) else parameters[name]


@functools.cache
def _parameters(function: Any) -> dict[str, Any]:
    """Parameter names and defaults; of torch's built-ins those that matter here."""
    if function is torch._C._nn.scaled_dot_product_attention:
        return {"query": None, "key": None, "value": None, "attn_mask": None, "dropout_p": 0.0}
    try:
        params = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return {}
    return {name: None if p.default is inspect.Parameter.empty else p.default for name, p in params.items()}
