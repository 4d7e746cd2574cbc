"""Cut a captured graph into regions: what Inductor fuses into one kernel, as operators of the graph.

Inductor schedules the whole graph once, without code generation and without a run.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import torch
import torch._inductor.config as inductor_config
from torch import fx

from passagent.errors import PassagentError
from passagent.evaluator.matching.effects import Memory, is_pure, is_random, name_of, written
from passagent.tasks.extract.model_capture import quiet

_IMPURE = "writes memory that it did not make, takes random numbers, or runs under vmap or grad"


_KEY = "passagent"
_VIEWS = ("_unsafe_view", "_reshape_alias", "alias")
T = TypeVar("T")


class Kernels(NamedTuple):
    """The kernels of a schedule, each by the operators of the captured graph that it computes."""

    fused: list[frozenset[str]]
    """Kernels that Inductor generates: names of nodes."""
    library: frozenset[str]
    """Operators with a part that a library computes: matrix products, convolutions, attention."""
    launches: int = 0
    """Kernels of both kinds that one run launches."""


class _Scheduled(Exception):
    """There is no need to go on."""


def scheduled_kernels(graph_module: fx.GraphModule, inputs: Sequence[Any]) -> Kernels:
    """Inductor's schedule of a graph for these inputs, on their device. Raises PassagentError.

    Its passes and its fusion run as they do in a compilation. The graph is not changed.
    """
    from torch._inductor.compile_fx import compile_fx
    from torch._inductor.utils import fresh_cache

    schedules: list[Kernels] = []

    def look(nodes: list[Any]) -> list[Any]:
        schedules.append(_kernels(nodes))
        raise _Scheduled

    settings = {"_post_fusion_custom_pass": look, "force_disable_caches": True, "fx_graph_cache": False}
    tagged = _tagged(graph_module)
    with fresh_cache(), inductor_config.patch(settings), quiet():
        try:
            compile_fx(tagged, list(inputs))
        except Exception as error:
            if not schedules:
                text = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
                raise PassagentError(f"Inductor cannot schedule the graph: {text}") from error
    return schedules[0] if schedules else Kernels([], frozenset())


def _tagged(graph_module: fx.GraphModule) -> fx.GraphModule:
    """A copy in which each node carries its name; what is made of the node inherits it."""
    copy = fx.GraphModule(graph_module, fx.Graph())
    copies: dict[fx.Node, fx.Node] = {}
    output = copy.graph.graph_copy(graph_module.graph, copies)
    copy.graph.output(output)
    for node, tagged in copies.items():
        tagged.meta = {**node.meta, "custom": {_KEY: node.name}}
    copy.recompile()
    return copy


def _kernels(nodes: Sequence[Any]) -> Kernels:
    from torch._inductor.scheduler import ExternKernelSchedulerNode, NopKernelSchedulerNode

    external = [kernel.node for kernel in nodes if isinstance(kernel, ExternKernelSchedulerNode)]
    count = sum(not isinstance(kernel, NopKernelSchedulerNode) for kernel in nodes)
    called = {getattr(node, "get_origin_node", lambda: None)() for node in external} - {None}
    library, fused = _names(called), []
    for kernel in nodes:
        if isinstance(kernel, NopKernelSchedulerNode | ExternKernelSchedulerNode):
            continue
        parts = [part.node for part in kernel.get_nodes() if part.node is not None]
        # what a library computes is no part of a kernel that lays out its input for it
        computed = _names({origin for part in parts for origin in part.get_origins()} - called)
        if computed:
            fused.append(frozenset(computed))
    return Kernels(fused, frozenset(library), count)


def _names(origins: Iterable[Any]) -> set[str]:
    """The operators that nodes which compute come from; views compute nothing."""
    return {
        origin.meta["custom"][_KEY]
        for origin in origins
        if origin.op == "call_function"
        and _KEY in (origin.meta.get("custom") or {})
        and not getattr(origin.target, "is_view", False)
        and getattr(getattr(origin.target, "overloadpacket", None), "__name__", "") not in _VIEWS
    }


@dataclass(frozen=True)
class Region:
    """Operators of a graph that can be replaced by one call."""

    nodes: tuple[fx.Node, ...]
    """In the graph's order."""
    inputs: tuple[fx.Node, ...]
    """Nodes outside that they take, in the order of use."""
    outputs: tuple[fx.Node, ...]
    """Nodes of the region that are used outside."""

    def graph(self) -> fx.Graph:
        """The region as a graph of its own: in_0, ... and tmp_0, ..."""
        graph = fx.Graph()
        copies: dict[fx.Node, fx.Node] = {}
        for number, node in enumerate(self.inputs):
            copies[node] = graph.placeholder(f"in_{number}")
        for number, node in enumerate(self.nodes):
            copies[node] = graph.node_copy(node, copies.__getitem__)
            copies[node].type = None
            copies[node]._rename(f"tmp_{number}")
        graph.output(tuple(copies[node] for node in self.outputs))
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
    transformed = {node.name for node in memory.transformed}
    busy = kernels.library.union(transformed, *kernels.fused)
    free = {
        node for node in graph.nodes
        if node.op in ("call_function", "call_method") and node.name not in busy and is_pure(node)
    }  # fmt: skip
    regions, refused = [], []
    for group in whole:
        if not _not_a_region(group, memory):
            regions.append(region_of(group))
            free.difference_update(group)
    held = {node for region in regions for node in region.nodes}
    for names in _merged(kernels.fused):
        fused = {nodes[name] for name in names if name in nodes} - held
        impure = {node for node in fused if not _stays_inside(node, fused, memory)}
        refused += [(name, _IMPURE) for name in sorted(node.name for node in impure)]
        grown = _with_views(fused - impure, free)
        for part in itertools.chain(*map(_connected, _convex(grown, graph))):
            ordered = tuple(sorted(part, key=position.__getitem__))
            if all(node in free for node in ordered):
                continue
            if why := _not_a_region(ordered, memory):
                refused.append((", ".join(node.name for node in ordered), why))
                continue
            regions.append(region_of(ordered))
    if products:
        regions = _with_products(
            regions, [node for node in graph.nodes if node.name in kernels.library - transformed]
        )
    return sorted(regions, key=lambda region: position[region.nodes[0]]), refused


def region_of(ordered: Sequence[fx.Node]) -> Region:
    """Return these operators, which are in the graph's order, as a region."""
    part = set(ordered)
    inputs = dict.fromkeys(i for node in ordered for i in node.all_input_nodes if i not in part)
    outputs = tuple(node for node in ordered if any(user not in part for user in node.users))
    return Region(tuple(ordered), tuple(inputs), outputs)


def _with_products(regions: list[Region], library: Sequence[fx.Node]) -> list[Region]:
    """The regions and each linear of the library, with what one of the regions computes of it alone."""
    by_input = {region.inputs: region for region in regions}
    grown = list(regions)
    for node in library:
        if name_of(node) != "linear" or not all(map(_is_tensor, (node, *node.all_input_nodes))):
            continue
        inputs, behind = tuple(dict.fromkeys(node.all_input_nodes)), by_input.get((node,))
        if behind is not None and all(user in behind.nodes for user in node.users):
            grown.remove(behind)
            grown.append(Region((node, *behind.nodes), inputs, behind.outputs))
        else:
            grown.append(Region((node,), inputs, (node,)))
    return grown


def _merged(groups: Iterable[Set[T]]) -> list[set[T]]:
    """Return the groups, those with a common member as one."""
    merged: list[set[T]] = []
    for group in groups:
        others = [other for other in merged if not other & group]
        merged = [*others, set(group).union(*(other for other in merged if other & group))]
    return merged


def _with_views(fused: set[fx.Node], free: set[fx.Node]) -> set[fx.Node]:
    """The region with the operators without a kernel that only it uses."""
    grown, pending = set(fused), list(fused)
    while pending:
        for node in pending.pop().all_input_nodes:
            whole = all(_is_tensor(operand) or operand in grown for operand in node.all_input_nodes)
            if node in free and node not in grown and whole and all(user in grown for user in node.users):
                grown.add(node)
                pending.append(node)
    return grown


def _convex(nodes: set[fx.Node], graph: fx.Graph) -> list[set[fx.Node]]:
    """Parts of a set of nodes, none of which has a way out of it and back. Ways that leave count up."""
    depth: dict[fx.Node, int] = {}
    parts: dict[int, set[fx.Node]] = {}
    for node in graph.nodes:
        depths = [depth[i] + (i in nodes and node not in nodes) for i in node.all_input_nodes]
        depth[node] = max(depths, default=0)
        if node in nodes:
            parts.setdefault(depth[node], set()).add(node)
    return list(parts.values())


def _connected(part: set[fx.Node]) -> list[set[fx.Node]]:
    """Split nodes into those that are connected by values."""
    return _merged({node, *node.all_input_nodes} & part for node in part)


def _stays_inside(node: fx.Node, part: set[fx.Node], memory: Memory) -> bool:
    """Return whether a node writes no memory but that of nodes of the part, and has no other effect."""
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
