"""Cut a captured graph into regions: what Inductor fuses into one kernel, as operators of the graph."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from passagent.evaluator.matching.effects import Memory, is_pure, is_random, name_of, written
from passagent.tasks.extract.inductor_schedule import Kernels

_IMPURE = "writes memory that it did not make, takes random numbers, or runs under vmap or grad"


@dataclass(frozen=True)
class Region:
    """Operators of a graph that can be replaced by one call."""

    nodes: tuple[fx.Node, ...]
    """In the graph's order."""
    inputs: tuple[fx.Node, ...]
    """What they take from outside, in the order of use."""
    outputs: tuple[fx.Node, ...]
    """Those of them that are used outside."""

    def graph(self) -> fx.Graph:
        """The region as a graph of its own: in_0, ... and tmp_0, ..."""
        graph = fx.Graph()
        known: dict[fx.Node, fx.Node] = {}
        for number, node in enumerate(self.inputs):
            known[node] = graph.placeholder(f"in_{number}")
        for number, node in enumerate(self.nodes):
            known[node] = graph.node_copy(node, known.__getitem__)
            known[node].type = None
            known[node]._rename(f"tmp_{number}")
        graph.output(tuple(known[node] for node in self.outputs))
        graph.lint()
        return graph


def cut(
    graph: fx.Graph, kernels: Kernels, products: bool = False, whole: Iterable[Sequence[fx.Node]] = ()
) -> tuple[list[Region], list[tuple[str, str]]]:
    """Cut a graph by the kernels that Inductor would make of it: the regions, in the graph's order.

    The second list has names of operators that are no region, and why.

    `products`: each linear is a region, too, together with a region that takes nothing but its result.
    `whole`: operators that are a region whatever Inductor makes of them; none of the others holds them.

    Kernels that share an operator are one region. Views that only the region uses belong to it. A region that
    leaves itself and comes back is split there.
    """
    memory, nodes = Memory(graph), {node.name: node for node in graph.nodes}
    position = {node: number for number, node in enumerate(graph.nodes)}
    apart = {node.name for node in memory.transformed}
    busy = kernels.library.union(apart, *kernels.fused)
    free = {
        node for node in graph.nodes
        if node.op in ("call_function", "call_method") and node.name not in busy and is_pure(node)
    }  # fmt: skip
    found, refused = [], []
    for group in whole:
        if not _not_a_region(group, memory):
            found.append(_region(tuple(group)))
            free.difference_update(group)
    held = {node for region in found for node in region.nodes}
    for names in _merged(kernels.fused):
        fused = {nodes[name] for name in names if name in nodes} - held
        impure = {node for node in fused if not _stays_inside(node, fused, memory)}
        refused += [(name, _IMPURE) for name in sorted(node.name for node in impure)]
        own = _with_views(fused - impure, free)
        for part in _connected(_convex(own, graph)):
            ordered = tuple(sorted(part, key=position.__getitem__))
            if all(node in free for node in ordered):
                continue
            if why := _not_a_region(ordered, memory):
                refused.append((", ".join(node.name for node in ordered), why))
                continue
            found.append(_region(ordered))
    if products:
        found = _with_products(found, [node for node in graph.nodes if node.name in kernels.library - apart])
    return sorted(found, key=lambda region: position[region.nodes[0]]), refused


def _region(ordered: tuple[fx.Node, ...]) -> Region:
    part = set(ordered)
    inputs = dict.fromkeys(i for node in ordered for i in node.all_input_nodes if i not in part)
    outputs = tuple(node for node in ordered if any(user not in part for user in node.users))
    return Region(ordered, tuple(inputs), outputs)


def _with_products(regions: list[Region], library: Sequence[fx.Node]) -> list[Region]:
    """The regions and each linear of the library, with what one of the regions computes of it alone."""
    by_input = {region.inputs: region for region in regions}
    found = list(regions)
    for node in library:
        if name_of(node) != "linear" or not all(map(_is_tensor, (node, *node.all_input_nodes))):
            continue
        inputs, behind = tuple(dict.fromkeys(node.all_input_nodes)), by_input.get((node,))
        if behind is not None and all(user in behind.nodes for user in node.users):
            found.remove(behind)
            found.append(Region((node, *behind.nodes), inputs, behind.outputs))
        else:
            found.append(Region((node,), inputs, (node,)))
    return found


def _merged(groups: Iterable[frozenset[str]]) -> list[set[str]]:
    """The groups, those with a common member as one."""
    merged: list[set[str]] = []
    for group in groups:
        touching = [one for one in merged if one & group]
        merged = [one for one in merged if not one & group]
        merged.append(set(group).union(*touching))
    return merged


def _with_views(own: set[fx.Node], free: set[fx.Node]) -> set[fx.Node]:
    """The region with the operators without a kernel that only it uses."""
    grown, left = set(own), list(own)
    while left:
        for node in left.pop().all_input_nodes:
            whole = all(_is_tensor(one) or one in grown for one in node.all_input_nodes)
            if node in free and node not in grown and whole and all(user in grown for user in node.users):
                grown.add(node)
                left.append(node)
    return grown


def _convex(own: set[fx.Node], graph: fx.Graph) -> list[set[fx.Node]]:
    """Parts of a set of nodes, none of which has a way out of it and back. Ways that leave count up."""
    depth: dict[fx.Node, int] = {}
    parts: dict[int, set[fx.Node]] = {}
    for node in graph.nodes:
        left = [depth[i] + (i in own and node not in own) for i in node.all_input_nodes]
        depth[node] = max(left, default=0)
        if node in own:
            parts.setdefault(depth[node], set()).add(node)
    return list(parts.values())


def _connected(parts: Iterable[set[fx.Node]]) -> list[set[fx.Node]]:
    """What hangs together by values."""
    found = []
    for part in parts:
        left = set(part)
        while left:
            group, stack = set[fx.Node](), [left.pop()]
            while stack:
                node = stack.pop()
                group.add(node)
                near = [one for one in (*node.all_input_nodes, *node.users) if one in left]
                left.difference_update(near)
                stack += near
            found.append(group)
    return found


def _stays_inside(node: fx.Node, part: set[fx.Node], memory: Memory) -> bool:
    """Whether a node has no effect but its value, or one on memory alone that nodes of the part made."""
    if node in memory.transformed:
        return False
    if is_pure(node):
        return True
    values = written(node)
    return bool(values) and not is_random(node) and all(memory.roots[value] <= part for value in values)


def _not_a_region(nodes: Sequence[fx.Node], memory: Memory) -> str:
    """Why operators are no region; empty if they are one."""
    part = set(nodes)
    if impure := next((node for node in nodes if not _stays_inside(node, part, memory)), None):
        return f"{impure.name} {_IMPURE}"
    if odd := next(
        (i for n in nodes for i in n.all_input_nodes if i not in part and not _is_tensor(i)), None
    ):
        return f"{odd.name}, which it takes, is no tensor"
    if not any(user not in part for node in nodes for user in node.users):
        return "nobody uses what it computes"
    if odd := next((n for n in nodes if not _is_tensor(n) and any(u not in part for u in n.users)), None):
        return f"{odd.name}, which it gives, is no tensor"
    return ""


def _is_tensor(node: fx.Node) -> bool:
    value: Any = node.meta.get("example_value")
    return isinstance(value, torch.Tensor)
