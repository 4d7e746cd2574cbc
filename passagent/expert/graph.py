"""The expert's view of a captured graph: operators with shapes and dtypes, and what they do to memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from passagent.evaluator.matching.effects import written


def words(text: str) -> frozenset[str]:
    """A set of names that are written side by side."""
    return frozenset(text.split())


FREE_VIEWS = words("""
    view view_as reshape reshape_as flatten unflatten unsqueeze squeeze expand expand_as broadcast_to detach
    permute transpose t swapaxes swapdims movedim moveaxis
    getitem chunk split tensor_split unbind select narrow
""")
"""Operators that (mostly) only make another view: eager moves no data for them."""

DROPOUTS = words("dropout dropout1d dropout2d dropout3d")
IDENTITIES = DROPOUTS | words("contiguous to type_as float")
"""Operators that may return their input as it is."""

CONVOLUTIONS = ("conv1d", "conv2d")
"""Convolutions, of which some are lowered (lower/windows.py)."""

ALL_CONVOLUTIONS = words("conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d")

POOLS = {f"{kind}_pool{rank}d" for kind in ("avg", "max") for rank in (1, 2, 3)}

CALL = "scaled_dot_product_attention"
PRODUCTS = words("matmul bmm __matmul__")
HEAVY = (
    ALL_CONVOLUTIONS
    | PRODUCTS
    | words(f"""
    {CALL} linear addmm baddbmm mm einsum multi_head_attention_forward fold
    adaptive_max_pool2d max_pool2d_with_indices sort topk
""")
)
"""Operators that a vendor library does better."""

SLOW_ON = {"cpu": {"interpolate", *POOLS, *CONVOLUTIONS}, "cuda": set[str]()}
"""Operators that eager does better on a target: there their windows run over vectors of channels."""


def op_name(node: fx.Node) -> str:
    """`add`, `layer_norm`, `view`, ... of an operator node."""
    if node.op == "call_method":
        return str(node.target)
    return str(getattr(node.target, "__name__", node.target))


def operators(graph: fx.Graph) -> list[fx.Node]:
    """The operator nodes, in order."""
    return [n for n in graph.nodes if n.op in {"call_function", "call_method", "call_module", "get_attr"}]


def example(node: fx.Node) -> Any:
    """The (fake) value of a node: tensors have shape, dtype, strides."""
    return node.meta.get("example_value", node.meta.get("val"))


def results(node: fx.Node) -> Sequence[Any]:
    """The examples of all results of a node, of which there may be several."""
    value = example(node)
    return value if isinstance(value, tuple | list) else [value]


def arguments(node: fx.Node) -> list[tuple[tuple[Any, ...], Any]]:
    """Leaves of a node's arguments, with their paths."""
    return leaves({"args": node.args, "kwargs": node.kwargs})


def replaced(node: fx.Node, replace: Any) -> tuple[Any, Any]:
    """A node's args and kwargs with each leaf replaced by `replace(path, leaf)`."""
    return rebuild(node.args, replace, ("args",)), rebuild(node.kwargs, replace, ("kwargs",))


def argument(node: fx.Node, place: int, name: str, default: Any = None) -> Any:
    """An argument that is given by its place or by its name."""
    return node.args[place] if len(node.args) > place else node.kwargs.get(name, default)


def leaves(value: Any) -> list[tuple[tuple[Any, ...], Any]]:
    """Leaves of nested arguments, with their paths."""
    pairs: list[tuple[tuple[Any, ...], Any]] = []
    rebuild(value, lambda path, leaf: pairs.append((path, leaf)))
    return pairs


def rebuild(value: Any, replace: Any, path: tuple[Any, ...] = ()) -> Any:
    """Nested arguments with each leaf replaced by `replace(path, leaf)`."""
    if isinstance(value, tuple | list):
        items = [rebuild(v, replace, (*path, k)) for k, v in enumerate(value)]
        return items if type(value) is list else tuple(items)
    if isinstance(value, dict):
        return {k: rebuild(v, replace, (*path, k)) for k, v in value.items()}
    if isinstance(value, slice):
        return slice(*[rebuild(getattr(value, k), replace, (*path, k)) for k in ("start", "stop", "step")])
    return replace(path, value)


def mutates(node: fx.Node) -> fx.Node | None:
    """The node whose tensor an operator writes into, if it does."""
    return next(iter(written(node)), None)


def is_tensor(node: fx.Node) -> bool:
    return isinstance(example(node), torch.Tensor)


def is_free(node: fx.Node) -> bool:
    """Tell whether eager moves no data for the operator: the result lies in its input's memory."""
    name = op_name(node)
    if name not in FREE_VIEWS | IDENTITIES or mutates(node) is not None:
        return False
    if name.startswith("dropout"):
        return True  # lowered in evaluation mode only, where it returns its input
    sources = [s for a in node.all_input_nodes[:1] for s in results(a)]
    ids = {s.untyped_storage()._cdata for s in sources if isinstance(s, torch.Tensor)}
    return all(isinstance(r, torch.Tensor) and r.untyped_storage()._cdata in ids for r in results(node))


_MAKING = words("arange zeros ones full empty eye linspace tensor as_tensor")


def on_host(graph: fx.Graph) -> set[fx.Node]:
    """Nodes made without a device, and those computed only from them, until they are moved to one."""
    host_nodes: set[fx.Node] = set()
    for node in operators(graph):
        moved = "device" in node.kwargs or any(isinstance(a, torch.device) for a in node.args)
        sources = [a for a in node.all_input_nodes if isinstance(example(a), torch.Tensor)]
        is_made = op_name(node) in _MAKING and not sources
        if not moved and (is_made or (sources and all(a in host_nodes for a in sources))):
            host_nodes.add(node)
    return host_nodes
