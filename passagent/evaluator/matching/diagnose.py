"""The best attempt of a pattern that matches nowhere: an alignment that goes on past differences.

From every promising pair of equal operators the alignment grows along arguments and users, and counts the
operators that agree. The alignment that comes furthest names the operator that fails, and why.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from torch import fx

from passagent.evaluator.matching.effects import name_of
from passagent.evaluator.matching.unify import describe, key, same_literal, target_name, unify

_MAX_SEEDS = 400
_MAX_STEPS = 100_000
_MOST = 12
"""Operators beyond the first of which a reason says how they differ."""


@dataclass(frozen=True)
class Attempt:
    """How far the best alignment came, and the first operator (in the pattern's order) that fails in it.

    Where all of them agree, but one call cannot take their place, it is the operator that stands in the way.
    """

    matched: int
    pattern_node: fx.Node
    graph_node: fx.Node | None
    reason: str
    bound: dict[str, Any] | None = None
    """The values of the pattern's parameters, if each operator has a counterpart: only arguments differ."""
    returned: Any = None
    """The graph's nodes that are then in the place of what the pattern returns."""


@dataclass
class _Alignment:
    image: dict[fx.Node, fx.Node] = field(default_factory=dict)
    bound: dict[fx.Node, Any] = field(default_factory=dict)
    failures: dict[fx.Node, tuple[fx.Node | None, str]] = field(default_factory=dict)
    queue: deque[tuple[fx.Node, fx.Node]] = field(default_factory=deque)

    @property
    def matched(self) -> int:
        return sum(node not in self.failures for node in self.image)

    def fail(self, node: fx.Node, graph_node: fx.Node | None, reason: str) -> None:
        before = self.failures.get(node)
        self.failures[node] = (
            (graph_node, reason) if before is None else (before[0], f"{before[1]}; {reason}")
        )


def best_attempt(pattern: fx.Graph, graph: fx.Graph) -> Attempt:
    """The alignment with the most agreeing operators; of equal ones the first found."""
    operators = [node for node in pattern.nodes if node.op not in ("placeholder", "output")]
    present = [node for node in graph.nodes if node.op not in ("placeholder", "output")]
    index: dict[tuple[str, Any], list[fx.Node]] = {}
    for node in present:
        index.setdefault(key(node), []).append(node)
    best: _Alignment | None = None
    tried: set[tuple[fx.Node, fx.Node]] = set()
    steps = seeds = 0
    for start in sorted(operators, key=lambda node: len(index.get(key(node), ()))):
        for image in index.get(key(start), ()):
            if (start, image) in tried or seeds >= _MAX_SEEDS or steps > _MAX_STEPS:
                continue
            alignment = _align(start, image)
            seeds, steps = seeds + 1, steps + len(alignment.image)
            tried.update((p, g) for p, g in alignment.image.items() if p not in alignment.failures)
            if best is None or alignment.matched > best.matched:
                best = alignment
    if best is None:
        names = sorted({target_name(node) for node in present})
        what = f"no {target_name(operators[0])}, nor any other operator of the pattern"
        reason = f"operator: the graph holds {what}; it has {', '.join(names) or 'none'}"
        return Attempt(0, operators[0], None, reason + _spelling(operators[0], None, present))
    return _report(best, operators, present)


def _report(best: _Alignment, nodes: list[fx.Node], present: list[fx.Node]) -> Attempt:
    for node in nodes:
        if node in best.failures:
            graph_node, reason = best.failures[node]
            reason += _spelling(node, graph_node, present)
            others = [f"; `{describe(n)}`: {best.failures[n][1]}" for n in nodes if n in best.failures][1:]
            more = f"; {len(others) - _MOST} operators more differ" if len(others) > _MOST else ""
            parameters = {str(parameter.target): value for parameter, value in best.bound.items()}
            is_whole = all(node in best.image and key(node) == key(best.image[node]) for node in nodes)
            is_whole = is_whole and len(parameters) == len(nodes[0].graph.find_nodes(op="placeholder"))
            reason += "".join(others[:_MOST]) + more
            if not is_whole:
                return Attempt(best.matched, node, graph_node, reason)
            returned = fx.map_arg(node.graph.output_node().args[0], best.image.get)
            return Attempt(best.matched, node, graph_node, reason, parameters, returned)
    for node in nodes:
        if node not in best.image:
            free = [g for g in present if key(g) == key(node) and g not in best.image.values()]
            what = "a further" if any(key(g) == key(node) for g in present) else "any"
            reason = f"operator: the graph does not hold {what} {target_name(node)} beside the matched ones"
            if free:
                reason = "operator: this part of the pattern fits nowhere beside the matched ones"
            return Attempt(best.matched, node, None, reason + _spelling(node, None, present))
    last = nodes[-1]
    reason = "consistency: every operator fits alone, but no assignment fits them all at once"
    return Attempt(best.matched, last, best.image[last], reason)


def _align(start: fx.Node, image: fx.Node) -> _Alignment:
    state = _Alignment()
    _assign(state, start, image)
    while state.queue:
        node, graph_node = state.queue.popleft()
        _arguments(state, node, graph_node)
        _users(state, node, graph_node)
    return state


def _assign(state: _Alignment, node: fx.Node, graph_node: fx.Node) -> None:
    state.image[node] = graph_node
    state.queue.append((node, graph_node))


def _arguments(state: _Alignment, node: fx.Node, graph_node: fx.Node) -> None:
    if key(node) != key(graph_node):
        reason = f"operator: the pattern calls {target_name(node)}, the graph {target_name(graph_node)}"
        state.fail(node, graph_node, reason)
        ours, theirs = node.all_input_nodes, graph_node.all_input_nodes
        pairs: list[tuple[fx.Node, Any]] = (
            list(zip(ours, theirs, strict=True)) if len(ours) == len(theirs) else []
        )
    else:
        unified = unify(node, graph_node)
        pairs = unified.pairs
        for difference in unified.differences:
            state.fail(node, graph_node, difference)
    for left, right in pairs:
        _pair(state, node, graph_node, left, right)


def _pair(state: _Alignment, node: fx.Node, graph_node: fx.Node, left: fx.Node, right: Any) -> None:
    if left.op == "placeholder":
        old = state.bound.setdefault(left, right)
        if not same_literal(old, right, any_device=True):
            what = f"{old!r} elsewhere in the match and {right!r} here"
            state.fail(node, graph_node, f"parameter {left.name}: it stands for {what}; use two parameters")
    elif not isinstance(right, fx.Node):
        state.fail(node, graph_node, f"argument: the pattern computes {left.name}, the graph has {right!r}")
    elif left in state.image:
        if state.image[left] is not right:
            what = f"{left.name} stands for {state.image[left].name}, but the graph uses {right.name} here"
            state.fail(node, graph_node, f"argument: {what}")
    elif right.op in ("placeholder", "get_attr"):
        state.fail(
            left, right, f"operator: the pattern calls {target_name(left)}, the graph has an input here"
        )
    elif right in state.image.values():
        state.fail(left, right, f"operator: {right.name} already stands for another operator of the pattern")
    else:
        _assign(state, left, right)


def _users(state: _Alignment, node: fx.Node, graph_node: fx.Node) -> None:
    taken = set(state.image.values())
    for user in node.users:
        if user.op == "output" or user in state.image:
            continue
        free = [g for g in graph_node.users if g not in taken and g.op != "output"]
        same = [g for g in free if key(g) == key(user)]
        exact = [g for g in same if not unify(user, g).differences]
        ours = [u for u in node.users if u.op != "output" and u not in state.image]
        if exact or same:
            chosen = (exact or same)[0]
        elif len(ours) == 1 and len(free) == 1:
            chosen = free[0]
        else:
            uses = "; ".join(describe(g) for g in graph_node.users) or "nothing"
            what = f"{target_name(user)} does not use {graph_node.name} in the graph"
            reason = f"operator: {what}, where it goes to: {uses}"
            state.fail(user, None, reason)
            continue
        taken.add(chosen)
        _assign(state, user, chosen)


def _spelling(node: fx.Node, graph_node: fx.Node | None, present: list[fx.Node]) -> str:
    """Advice if the graph has the same operator in another spelling."""
    name = name_of(node)
    for other in [graph_node] if graph_node is not None else present:
        theirs = name_of(other)
        if key(other) == key(node):
            continue
        if theirs == name:
            return f"; the graph writes `{describe(other)}`: methods, functions and operators are told apart"
        if theirs.strip("_") in (f"i{name}", name) or name.strip("_") in (f"i{theirs}", theirs):
            return f"; the graph writes it `{describe(other)}`: in-place and other forms are told apart"
    return ""
