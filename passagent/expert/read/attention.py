"""Attention in a captured graph: the operators that one kernel takes.

Either a call of `scaled_dot_product_attention`, or its mathematical form: a product, what is done to the
scores, softmax, a second product. With them come the views around queries, keys, values and the result, and
how a bias or mask is made that only these scores are given.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import fx

from passagent.expert.graph import CALL, FREE_VIEWS, IDENTITIES, PRODUCTS, argument, example, op_name, words
from passagent.expert.lower.region import Region

ONE_BLOCK = 128
"""Keys that are read at once, at most. More of them, without a mask, are the library's work."""
_VIEWS = FREE_VIEWS | IDENTITIES | {"half", "bfloat16", "type", "repeat_interleave", "repeat"}
"""Operators that read at other indices or in another type."""
_BEHIND = FREE_VIEWS - words("getitem chunk split tensor_split unbind select narrow")
_BEHIND |= words("contiguous dropout")
"""Operators that only move the result."""
_NUMBERS = {"mul", "div", "truediv", "imul", "itruediv", "__mul__", "__truediv__"}
"""Operators that scale queries or keys by a number."""
_BIAS = _VIEWS | _NUMBERS
_BIAS |= {"add", "sub", "rsub", "iadd", "masked_fill", "where", "eq", "ne", "invert", "logical_not"}
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
    left_out = set(without)
    for node in list(graph.nodes):
        core = _core(node, inside)
        if core is None or left_out & {op_name(n) for n in core}:
            continue
        nodes = _with_sides(core, inside)
        if all(u in nodes for n in core[:-1] for u in n.users):
            _append_moves(core[-1], nodes, inside)
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
    nodes = set(core)
    changed = True
    allowed: dict[fx.Node, frozenset[str]] = {}
    for node in core:
        for place, source in enumerate(node.all_input_nodes):
            operand = op_name(node) in PRODUCTS or (op_name(node) == CALL and place < 3)
            allowed[source] = (_VIEWS | _NUMBERS) if operand else _BIAS
    while changed:
        changed = False
        for node, names in list(allowed.items()):
            name = op_name(node)
            if node in nodes or node not in inside or name not in names:
                continue
            if names is not _BIAS and name in _NUMBERS and len(node.all_input_nodes) != 1:
                continue
            if name in {"getitem", "repeat", "repeat_interleave"} and len(node.all_input_nodes) != 1:
                continue
            if all(user in nodes for user in node.users):
                nodes.add(node)
                allowed.update({source: names for source in node.all_input_nodes if source not in allowed})
                changed = True
    return nodes


def _append_moves(node: fx.Node, nodes: set[fx.Node], inside: set[fx.Node]) -> None:
    """Add what only moves the result."""
    while len(node.users) == 1:
        node = next(iter(node.users))
        if node not in inside or op_name(node) not in _BEHIND or len(node.all_input_nodes) != 1:
            return
        nodes.add(node)
