"""Choose the operators of a captured graph to fuse: convex regions without vendor-library operators."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from passagent.evaluator.matching.effects import Memory, transformed
from passagent.expert.graph import (
    CONVOLUTIONS,
    DROPOUTS,
    FREE_VIEWS,
    IDENTITIES,
    POOLS,
    argument,
    example,
    is_free,
    is_tensor,
    mutates,
    on_host,
    op_name,
    operators,
    results,
    words,
)
from passagent.expert.lower import Region, Types, lower_node
from passagent.expert.lower.attention import attention_nodes, is_attention
from passagent.expert.lower.expressions import Trace
from passagent.expert.lower.symbolic_sizes import Unsupported
from passagent.expert.lower.windows import bias_of, is_computed
from passagent.expert.read.pattern_text import qualified

SAME_ORDER = IDENTITIES | words("view view_as reshape flatten unflatten unsqueeze squeeze detach")
"""Views that keep elements in their order."""

VIEWS = FREE_VIEWS | DROPOUTS | {"contiguous"}
"""Operators that the wrapper may call where nothing is to be computed."""


def find_regions(
    graph: fx.Graph, target: str, without: frozenset[str] = frozenset()
) -> tuple[list[Region], dict[str, str]]:
    """All regions worth a kernel, the largest first; operators that stay outside, as `without`, and why."""
    regions, refused = list[Region](), dict[str, str]()
    inside = _lowerable(graph, target, without, refused)
    if target == "cuda":
        for node, why in left_outside(graph, inside).items():
            inside.discard(node)
            refused[op_name(node)] = why
    _refuse_shared_writes(graph, inside, refused)
    if target == "cuda":
        candidates = _regions(graph, attention_nodes(graph, inside, without))
        regions += [region for region in candidates if len(region.outputs) == 1]
        taken = {node for region in regions for node in region.nodes}
        inside -= taken  # they are no other region's
        outside = {op_name(node) for node in operators(graph) if node not in taken}
        refused = {name: why for name, why in refused.items() if name in outside}
    depth = _depths(graph, inside)
    components = [c for nodes in _components(graph, inside, depth) for c in _trimmed(graph, nodes)]
    candidates = _regions(graph, components)
    regions += [region for region in candidates if worth(region, target)]
    regions.sort(key=lambda r: -gain(r, target))
    regions = [r for r in regions if gain(r, target) > 0] or regions[:1]
    if not regions:
        # No kernel is sure to pay: views, the more of them do nothing the better, else a lone operator.
        # A call in place of views costs about as much as they do, so it is to be short.
        views = _regions(graph, _components(graph, {n for n in inside if is_view(n)}, depth))
        views.sort(key=lambda r: (sum(map(does_nothing, r.nodes)), len(r.nodes)), reverse=True)
        lone = [r for r in candidates if any(is_computed(n) and not is_free(n) for n in r.nodes)]
        regions = [*views, *sorted(lone, key=lambda r: -gain(r, target))][:1]
    return regions, refused


def _regions(graph: fx.Graph, components: Iterable[list[fx.Node]]) -> list[Region]:
    """The regions that sets of nodes make."""
    return [region for nodes in components if (region := make_region(graph, nodes)) is not None]


def does_nothing(node: fx.Node) -> bool:
    """Tell whether eager calls an operator that returns its input."""
    return op_name(node) in DROPOUTS | {"detach"}


def moves_only(region: Region) -> bool:
    """Tell whether the region computes nothing and casts nothing: eager's views and copies can do it."""
    return all(op_name(n) in VIEWS and mutates(n) is None for n in region.nodes)


def is_view(node: fx.Node) -> bool:
    """Tell whether the wrapper can do the operator on the host: a view, or nothing at all."""
    return is_free(node) and op_name(node) in VIEWS


def _lowerable(
    graph: fx.Graph, target: str, without: frozenset[str], refused: dict[str, str]
) -> set[fx.Node]:
    """Operators that can be lowered, each on its own."""
    inside: set[fx.Node] = set()
    wrapped = transformed(graph)
    for node in operators(graph):
        name = op_name(node)
        if name in without:
            refused[name] = "left outside by the plan"
            continue
        try:
            if node.op not in {"call_function", "call_method"} or qualified(node) is None:
                raise Unsupported(name, "cannot be written in a pattern")
            if node in wrapped:
                raise Unsupported(name, "runs under vmap or grad of torch.func")
            if not has_known_size(node):
                raise Unsupported(name, "has a size that depends on data")
            trace = Trace(target)
            env = {source: _input(trace, source) for source in node.all_input_nodes}
            lower_node(trace, node, env, Types(), lambda path, value: value)
            inside.add(node)
        except Unsupported as error:
            refused[name] = error.reason
    while torn := _torn(inside):
        inside.difference_update(torn)
    return inside


def has_known_size(node: fx.Node) -> bool:
    """Tell whether every size of what an operator gives is a number in the example."""
    return all(type(n) is int for t in results(node) if isinstance(t, torch.Tensor) for n in t.shape)


def _input(trace: Trace, node: fx.Node) -> Any:
    tensors = results(node)
    if not has_known_size(node):
        raise Unsupported(op_name(node), "reads a tensor whose size depends on data")
    if not all(isinstance(tensor, torch.Tensor) for tensor in tensors):
        raise Unsupported(op_name(node), f"reads {node.name}, which is no tensor")
    if any(0 in tensor.shape for tensor in tensors):
        raise Unsupported(op_name(node), "reads an empty tensor")
    read = tuple(trace.input(tensor.shape, Types().name(tensor.dtype)) for tensor in tensors)
    return read[0] if is_tensor(node) else read


def _refuse_shared_writes(graph: fx.Graph, inside: set[fx.Node], refused: dict[str, str]) -> None:
    """An operator that writes in place is lowered out of place: nobody else may see the tensor later."""
    memory = Memory(graph)
    storage, order = memory.roots, memory.position
    for node in [node for node in memory.order if node in inside]:
        written = mutates(node)
        if written is None:
            continue
        if not node.users and any(root.op == "placeholder" for root in storage[written]):
            inside.discard(node)
            refused[op_name(node)] = "is there for what it leaves in an input"
            continue
        for other in graph.nodes:
            if other is node or not storage[other] & storage[written]:
                continue
            later = [u for u in other.users if order[u] > order[node]]
            if other is written or mutates(other) is not None:
                # Readers of the tensor itself see the new value if they are lowered with it.
                read = [u for u in later if u not in inside or u.op == "output"]
                later = read if order[other] <= order[node] else []
            elif order[other] > order[node]:
                continue
            if later:
                inside.discard(node)
                refused[op_name(node)] = f"writes in place into a tensor that {later[0].name} reads later"
                break


def _depths(graph: fx.Graph, inside: set[fx.Node]) -> dict[fx.Node, int]:
    """Outside operators on the longest way to each node, also by memory: regions of one depth are convex."""
    depth: dict[fx.Node, int] = {}
    storage, writers = Memory(graph).roots, list[fx.Node]()
    for node in graph.nodes:
        before = [
            depth[a]
            + (_begins_anew(node, a, inside) if a in inside else a.op not in {"placeholder", "get_attr"})
            for a in node.all_input_nodes
        ]
        before += [depth[w] + 1 for w in writers if _shares_with(node, w, storage)]
        depth[node] = max(before, default=0)
        if node not in inside and mutates(node) is not None:
            writers.append(node)
    # As late as its readers allow: what only feeds a later region belongs to it.
    for node in reversed(list(graph.nodes)):
        movable = node in inside and mutates(node) is None
        movable = movable and not any(_shares_with(node, w, storage) for w in writers)
        if movable and node.users and all(u in inside for u in node.users):
            depth[node] = max(depth[node], min(depth[u] - _begins_anew(u, node, inside) for u in node.users))
    return depth


def _begins_anew(node: fx.Node, source: fx.Node, inside: set[fx.Node]) -> bool:
    """Tell whether a kernel begins at an operator: it reads computed elements often."""
    if node in inside and not is_computed(node):
        return True  # what the library reads is made before it is called
    computed = source
    while computed in inside and is_free(computed):
        computed = computed.all_input_nodes[0]
    return computed in inside and reads_often(node, source)


def _shares_with(node: fx.Node, writer: fx.Node, storage: dict[fx.Node, frozenset[Any]]) -> bool:
    """Tell whether a node is of, or reads, the memory that another writes."""
    return any(storage[a] & storage[writer] for a in [node, *node.all_input_nodes])


def _components(graph: fx.Graph, inside: set[fx.Node], depth: dict[fx.Node, int]) -> list[list[fx.Node]]:
    """Connected parts: by values, or by an input that both read."""
    parent: dict[fx.Node, fx.Node] = {n: n for n in inside}

    def root(n: fx.Node) -> fx.Node:
        while parent[n] is not n:
            n = parent[n]
        return n

    readers: dict[tuple[fx.Node, int], fx.Node] = {}
    for node in graph.nodes:
        if node not in inside:
            continue
        for a in node.all_input_nodes:
            if a in inside and depth[a] == depth[node]:
                parent[root(node)] = root(a)
            elif a not in inside and (is_computed(node) or bias_of(node) is a):  # its kernel reads it
                first = readers.setdefault((a, depth[node]), node)
                parent[root(node)] = root(first)
    groups: dict[fx.Node, list[fx.Node]] = {}
    for node in graph.nodes:
        if node in inside:
            groups.setdefault(root(node), []).append(node)
    return list(groups.values())


def _trimmed(graph: fx.Graph, nodes: list[fx.Node]) -> list[list[fx.Node]]:
    """The parts left when views at the end, and views of inputs that others use too, are taken off."""
    trimmed, before = dict.fromkeys(nodes), -1
    while before != len(trimmed):
        before = len(trimmed)
        for node in list(reversed(trimmed)):
            outside = [u for u in node.users if u not in trimmed]
            if (outside or not node.users) and is_free(node) and not _costs_nothing(node, trimmed):
                del trimmed[node]
        for node in _torn(trimmed):
            del trimmed[node]
    return [c for c in _components(graph, set(trimmed), _depths(graph, set(trimmed))) if c]


def _costs_nothing(node: fx.Node, trimmed: dict[fx.Node, None]) -> bool:
    """One of several results of an operator here, or a value of here, read once, its dimensions renamed."""
    source = (node.all_input_nodes or [node])[0]
    if source in trimmed and isinstance(example(source), tuple | list):
        return not is_free(source)
    if op_name(node) not in SAME_ORDER:
        return False
    if source not in trimmed or len(source.users) > 1:
        return False
    return not is_free(source) or _costs_nothing(source, trimmed)


def _torn(nodes: Collection[fx.Node]) -> list[fx.Node]:
    """Nodes of several results (chunk, split) that others unpack, and nodes that unpack results of others."""
    return [
        n
        for n in nodes
        if (isinstance(example(n), tuple | list) and any(u not in nodes for u in n.users))
        or any(isinstance(example(a), tuple | list) and a not in nodes for a in n.all_input_nodes)
    ]


def make_region(graph: fx.Graph, nodes: list[fx.Node]) -> Region | None:
    """Inputs and outputs of a set of nodes; None if an input is no tensor."""
    inside = set(nodes)
    inputs = dict.fromkeys(a for node in nodes for a in node.all_input_nodes if a not in inside)
    outputs = [
        n for n in nodes if any(u not in inside for u in n.users) or (not n.users and mutates(n) is not None)
    ]
    if not outputs or not inputs or not all(map(is_tensor, [*inputs, *outputs])):
        return None
    return Region(nodes, list(inputs), outputs)


def attentions(graph: fx.Graph) -> list[list[fx.Node]]:
    """The operators of each attention that is one kernel on a GPU."""
    return [region.nodes for region in find_regions(graph, "cuda")[0] if is_attention(region)]


def left_outside(graph: fx.Graph, inside: set[fx.Node]) -> dict[fx.Node, str]:
    """The nodes of `inside` that no kernel takes: results on the CPU, and readers of such tensors."""
    host, gone, before = on_host(graph), dict[fx.Node, str](), -1
    while host and before != len(gone):
        before = len(gone)
        for node in inside - set(gone):
            if node in host and any(u not in inside or u in gone for u in node.users):
                gone[node] = "makes a tensor on the CPU"
            elif any(a in host and (a not in inside or a in gone) for a in node.all_input_nodes):
                gone[node] = "reads a tensor on the CPU"
    return gone


@dataclass(frozen=True)
class Costs:
    """The cost of operators on a target: microseconds, and bytes a microsecond."""

    operator: float
    """One of eager's that computes."""
    view: float
    launch: float
    """One kernel of ours, with its outputs."""
    bandwidth: float


COSTS = {"cpu": Costs(2.0, 1.0, 1.5, 1e4), "cuda": Costs(7.0, 1.5, 5.1, 4e6)}
"""Operator and launch as measured on an H200; the rest is estimated."""

MOST_RECOMPUTED = 9
"""Elements of a window up to which what it reads is computed in the same kernel, once for each."""
MOST_NESTED = 16
"""Elements of windows of windows that are computed in one kernel."""
LARGE_IMAGE = 1 << 22
"""Elements from which an image that is enlarged is computed before, and not for each neighbour."""
LARGE_COPY = 1 << 20
"""Bytes from which a copy alone is left to eager."""


def moved_bytes(node: fx.Node) -> int:
    """Bytes that eager reads and writes for an operator; 0 for free views."""
    return 0 if is_free(node) else _bytes([node, *node.all_input_nodes])


def _bytes(nodes: Iterable[fx.Node]) -> int:
    tensors = [t for node in nodes for t in results(node) if isinstance(t, torch.Tensor)]
    return sum(t.numel() * t.element_size() for t in tensors)


def gain(region: Region, target: str) -> float:
    """Rough saving on eager, microseconds: what each operator costs to start, and memory not walked again."""
    costs = COSTS[target]
    starts = sum(costs.view if is_free(n) else costs.operator for n in region.nodes)
    inside = sum(moved_bytes(n) for n in region.nodes)
    border = _bytes([*region.inputs, *region.outputs])
    return starts - costs.launch + (inside - border) / costs.bandwidth


def worth(region: Region, target: str) -> bool:
    """Tell whether one kernel can beat the operators one by one."""
    computing = [n for n in region.nodes if not is_free(n)]
    if not any(map(is_computed, computing)):
        return False
    if len(computing) == 1:
        lone = computing[0]
        copies = op_name(lone) in FREE_VIEWS | IDENTITIES
        if target == "cuda":
            return gain(region, target) > 0 and not (copies and moved_bytes(lone) > LARGE_COPY)
        # Alone, an operator that writes in place needs no memory of its own, and a copy is eager's work.
        return gain(region, target) > 0 and mutates(lone) is None and not copies
    return True


def reads_often(node: fx.Node, source: fx.Node) -> bool:
    """Tell whether an operator reads each element of `source` so often that it is best stored before."""
    if op_name(node) in CONVOLUTIONS:
        return True
    if op_name(node) in {"interpolate", "upsample"}:
        mode = argument(node, 3, "mode")
        is_one = math.prod(example(source).shape[2:]) == 1
        return mode == "bilinear" and not is_one and example(node).numel() >= LARGE_IMAGE
    reads = _window(node)
    return reads > MOST_RECOMPUTED or (reads > 1 and reads * _window(source) > MOST_NESTED)


def _window(node: fx.Node) -> int:
    """Elements of the windows of a pooling; 1 of any other operator."""
    if op_name(node) not in POOLS:
        return 1
    size = argument(node, 1, "kernel_size")
    sides = size if isinstance(size, tuple | list) else [size] * int(op_name(node)[-2])
    return math.prod(n for n in sides if isinstance(n, int))
