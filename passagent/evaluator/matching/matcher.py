"""Find a pattern in a captured graph, or check that it is where somebody says it is.

A match maps every operator of the pattern to an operator of the graph, and every parameter to a node or a
literal. Inner values may not be used outside of it unless the pattern returns them, and collapsing it to one
call must not change the order of anything that depends on anything else (values or memory).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import fx

from passagent.errors import PassagentError
from passagent.evaluator.matching.diagnose import Attempt, best_attempt
from passagent.evaluator.matching.effects import Memory
from passagent.evaluator.matching.pattern import nodes_in
from passagent.evaluator.matching.unify import describe, key, same_literal, unify
from passagent.evaluator.result import Mismatch

_MAX_TRIALS = 200_000
"""Node comparisons before a search is given up: only many equal, unconnected parts get there."""


class MatchError(PassagentError):
    """A pattern is not where it is said to be; the message says why, in one line."""


@dataclass(frozen=True)
class Match:
    """Where a pattern occurs."""

    nodes: dict[fx.Node, fx.Node]
    """Pattern operator to graph operator, in the pattern's order."""
    bindings: dict[str, Any]
    """Pattern parameter to a graph node, or a literal (which may hold nodes: a list given to cat)."""
    outputs: list[Any]
    """The pattern's results, as nodes of the graph (a returned parameter: its node or literal)."""
    followers: list[fx.Node]
    """Operators between the match's first and last that must run after it, in order."""


def match(pattern: fx.Graph, graph: fx.Graph) -> list[Match]:
    """All matches that do not overlap, in the graph's order."""
    search, taken, matches = _Search(pattern, graph), set[fx.Node](), []
    for candidate in search.matches():
        if taken.isdisjoint(candidate.nodes.values()):
            matches.append(candidate)
            taken.update(candidate.nodes.values())
    return matches


def first_match(pattern: fx.Graph, graph: fx.Graph) -> Match | None:
    """The first match in the graph's order."""
    return next(_Search(pattern, graph).matches(), None)


def match_at(pattern: fx.Graph, graph: fx.Graph, names: Sequence[str]) -> Match:
    """The match of the graph's nodes of these names, one for each operator of the pattern, in its order.

    Nothing is searched: every operator is compared with its node once. Raises MatchError where the nodes are
    not there, are not the pattern, or cannot be replaced by one call.
    """
    nodes = {node.name: node for node in graph.nodes}
    assignment = _Assignment(pattern, graph)
    if len(names) != len(assignment.pattern_operators):
        raise MatchError(f"it covers {len(names)} nodes, its pattern {len(assignment.pattern_operators)}")
    for step, name in zip(assignment.pattern_operators, names, strict=True):
        if name not in nodes:
            raise MatchError(f"it covers {name}, which the graph does not have or an earlier call replaced")
        if assignment.bind(step, nodes[name]) is None:
            raise MatchError(f"`{describe(nodes[name])}` is not `{describe(step)}` of its pattern")
    match = assignment.complete()
    if match is None:
        refused = assignment.refused
        raise MatchError(refused.reason if refused else "it computes a parameter of its own pattern")
    return match


def explain(pattern: fx.Graph, graph: fx.Graph, pass_name: str) -> Mismatch:
    """Why a pattern that matches nowhere does not: its best attempt."""
    search = _Search(pattern, graph)
    if next(search.matches(), None) is not None:
        raise ValueError(f"{pass_name} matches")
    attempt = search.refused or best_attempt(pattern, graph)
    reason = attempt.reason
    if search.refused is None and search.trials > _MAX_TRIALS:
        reason += " (the search was given up: the pattern has too many equal, unconnected parts)"
    return Mismatch(
        pass_name=pass_name,
        matched_nodes=attempt.matched,
        pattern_nodes=len(search.steps),
        pattern_node=describe(attempt.pattern_node),
        graph_node=describe(attempt.graph_node) if attempt.graph_node is not None else None,
        reason=reason,
    )


def operators(graph: fx.Graph) -> list[fx.Node]:
    """The nodes that compute, in order."""
    return [node for node in graph.nodes if node.op not in ("placeholder", "output")]


class _Assignment:
    """Operators of the pattern with their nodes, parameters with their values, all of which agree."""

    def __init__(self, pattern: fx.Graph, graph: fx.Graph) -> None:
        self.graph = graph
        self.pattern_operators = operators(pattern)
        self.returned = returned(pattern)
        self.memory: Memory | None = None
        self.bound: dict[fx.Node, Any] = {}
        self.used: set[fx.Node] = set()
        self.refused: Attempt | None = None
        """The first structure that is there and cannot be replaced."""

    def bind(self, step: fx.Node, node: fx.Node) -> list[fx.Node] | None:
        """Bind `step` to `node` and what follows of it; what was newly bound, None if it cannot be."""
        if key(step) != key(node) or node in self.used:
            return None
        unified = unify(step, node)
        if unified.differences:
            return None
        new: list[fx.Node] = []
        for part, image in [(step, node), *unified.pairs]:
            if part in self.bound:
                fits = same_literal(self.bound[part], image, any_device=True)
            else:
                fits = part.op == "placeholder" or (isinstance(image, fx.Node) and key(part) == key(image))
                if fits:
                    self.bound[part] = image
                    new.append(part)
            if not fits:
                for item in new:
                    del self.bound[item]
                return None
        self.used.add(node)
        return [step, *new]

    def complete(self) -> Match | None:
        """The match, if one call can take its place."""
        nodes = {step: self.bound[step] for step in self.pattern_operators}
        arguments = (value for parameter, value in self.bound.items() if parameter.op == "placeholder")
        if any(node in self.used for value in arguments for node in nodes_in(value)):
            return None  # a parameter would be a value that the match itself computes
        followers = self._check(nodes)
        if isinstance(followers, Attempt):
            self.refused = self.refused or followers
            return None
        bindings = {str(p.target): value for p, value in self.bound.items() if p.op == "placeholder"}
        return Match(nodes, bindings, [self.bound[node] for node in self.returned], followers)

    def _check(self, nodes: dict[fx.Node, fx.Node]) -> list[fx.Node] | Attempt:
        """The match's followers; refused for a leak, for another order, or if it is not convex."""
        inside = {image: step for step, image in nodes.items()}
        returned = set(self.returned)
        for step, image in nodes.items():
            outside = [user for user in image.users if user not in inside]
            if outside and step not in returned:
                advice = f"return {step.name} from pattern too, or match that operator as well"
                where = f"{image.name} is also used outside of the match, by `{describe(outside[0])}`"
                reason = f"leak: {where}; {advice}"
                return Attempt(len(nodes), step, image, reason)
        self.memory = self.memory or Memory(self.graph)
        for step, image in nodes.items():
            if image in self.memory.transformed:
                return Attempt(len(nodes), step, image, f"{image.name} runs under vmap or grad of torch.func")
        return self._order(nodes, inside, self.memory)

    def _order(
        self, nodes: dict[fx.Node, fx.Node], inside: dict[fx.Node, fx.Node], memory: Memory
    ) -> list[fx.Node] | Attempt:
        order = {step: i for i, step in enumerate(self.pattern_operators)}
        for image, step in inside.items():
            for earlier in memory.through_memory[image]:
                if earlier in inside and order[inside[earlier]] > order[step]:
                    what = f"{earlier.name} and {image.name} touch the same memory and run in the other order"
                    reason = f"order: in the graph {what}; write them in the graph's order"
                    return Attempt(len(nodes), step, image, reason)
        positions = sorted(memory.position[image] for image in inside)
        followers: dict[fx.Node, None] = {}
        for node in memory.order[positions[0] : positions[-1] + 1]:
            depends = [other for other in memory.before[node] if other in inside or other in followers]
            if node not in inside:
                if depends:
                    followers[node] = None
                continue
            between = next((other for other in depends if other in followers), None)
            if between is not None:
                through = "memory" if between not in node.all_input_nodes else "its value"
                reason = (
                    f"not convex: `{describe(between)}` lies outside of the match, but must run after one of "
                    f"its operators and before {node.name} (through {through}); match it too"
                )
                return Attempt(len(nodes), inside[node], node, reason)
        return list(followers)


class _Search(_Assignment):
    """Backtracking over a fixed order of the pattern's operators.

    In that order each operator is an argument of an earlier one (then the graph node is known), a user of an
    earlier one or of a bound parameter (then it is among that node's users), or a new root.
    """

    def __init__(self, pattern: fx.Graph, graph: fx.Graph) -> None:
        super().__init__(pattern, graph)
        self.index: dict[tuple[str, Any], list[fx.Node]] = {}
        for node in operators(graph):
            self.index.setdefault(key(node), []).append(node)
        self.depth = {**_depths(self.pattern_operators), **_depths(operators(graph))}
        self.steps = self._plan()
        self.trials = 0

    def matches(self) -> Iterator[Match]:
        """Every match, the first step's candidates in the graph's order; at most one for each of them."""
        for root in self._candidates(0):
            self.bound, self.used = {}, set()
            if (complete := self._from(root)) is not None:
                yield complete
            if self.trials > _MAX_TRIALS:
                return

    def _plan(self) -> list[fx.Node]:
        """Rarest operator first, then along arguments and users."""
        pending = dict.fromkeys(self.pattern_operators)
        plan: list[fx.Node] = []
        while pending:
            # Among equally rare ones the last: its arguments follow without a choice.
            root = min(reversed(pending), key=lambda node: len(self.index.get(key(node), ())))
            stack = [root]
            while stack:
                node = stack.pop()
                if node not in pending:
                    continue
                del pending[node]
                plan.append(node)
                stack += [user for user in node.users if user in pending]
                shared = [user for p in node.all_input_nodes if p.op == "placeholder" for user in p.users]
                stack[:0] = [user for user in shared if user in pending]
                stack += [argument for argument in node.all_input_nodes if argument in pending]
        return plan

    def _from(self, root: fx.Node) -> Match | None:
        choices: list[Iterator[fx.Node]] = [iter([root])]
        trail: list[list[fx.Node]] = []
        while choices:
            depth = len(choices) - 1
            if len(trail) > depth:
                self._undo(trail.pop())
            node = next(choices[-1], None)
            if node is None:
                choices.pop()
                continue
            self.trials += 1
            if self.trials > _MAX_TRIALS:
                return None
            bound = self.bind(self.steps[depth], node)
            if bound is None:
                continue
            trail.append(bound)
            if len(trail) < len(self.steps):
                choices.append(iter(self._candidates(len(trail))))
            elif (complete := self.complete()) is not None:
                return complete
        return None

    def _candidates(self, depth: int) -> list[fx.Node]:
        step = self.steps[depth]
        if step in self.bound:
            return [self.bound[step]]
        for argument in step.all_input_nodes:
            value = self.bound.get(argument)
            if isinstance(value, fx.Node):
                return [user for user in value.users if user not in self.used and key(user) == key(step)]
        deep = self.depth[step]
        return [n for n in self.index.get(key(step), ()) if n not in self.used and self.depth[n] >= deep]

    def _undo(self, bound: list[fx.Node]) -> None:
        step, *new = bound
        self.used.discard(self.bound[step])
        for item in new:
            del self.bound[item]


def _depths(nodes: list[fx.Node]) -> dict[fx.Node, int]:
    """Operators on the longest way from the inputs to each node: a match can only be as deep or deeper."""
    depth: dict[fx.Node, int] = {}
    for node in nodes:
        depth[node] = 1 + max((depth.get(argument, 0) for argument in node.all_input_nodes), default=0)
    return depth


def returned(pattern: fx.Graph) -> list[fx.Node]:
    """The values that a pattern returns, as a list."""
    value = pattern.output_node().args[0]
    return list(value) if isinstance(value, (tuple, list)) else [value]  # type: ignore[list-item,arg-type]
