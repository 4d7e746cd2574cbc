"""Recorded patterns and their places in a graph, on the trusted side: names are looked up, nothing is run.

A recording says which nodes each call replaces. That they are the pattern is checked, not searched. A pattern
stays a `torch.fx.Graph`: no GraphModule is made of it, whose code would be written from its names.
"""

from __future__ import annotations

import keyword
import math
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import fx

from passagent.errors import PassagentError
from passagent.evaluator.matching.loaded_passes import PlannedPass
from passagent.evaluator.matching.matcher import MatchError, match_at
from passagent.evaluator.matching.pattern import is_operator
from passagent.evaluator.matching.rewrite import checked, replace_match
from passagent.plan.arguments import ParameterArg, leaves
from passagent.plan.check import PlanError
from passagent.plan.model import Call, PatternNode, Recording
from passagent.tasks import graphio

_MODULES = {"torch": torch, "operator": operator, "_operator": operator, "math": math}
_TORCH_VALUES = {"dtype": torch.dtype, "memory_format": torch.memory_format, "layout": torch.layout}
_TYPES = ("bool", "int", "float", "complex")

Bindings = dict[str, Any]
"""The values of a pattern's parameters in a match: nodes of the graph, and literals."""


class MalformedPattern(PassagentError):
    """A recorded pattern is no graph of operators that this torch has."""


def pattern_graph(nodes: Iterable[PatternNode]) -> fx.Graph:
    """The graph. Raises MalformedPattern."""
    graph, by_name = fx.Graph(), dict[str, fx.Node]()
    try:
        for entry in nodes:
            if entry.name in by_name or keyword.iskeyword(entry.name):
                raise MalformedPattern(f"a pattern has two nodes {entry.name}, or one of that name cannot be")
            given = [entry.args, entry.kwargs or {"dict": []}]
            args, kwargs = graphio.load_value(given, by_name, _load)
            target = _function(entry.target) if entry.op == "call_function" else entry.target
            if entry.op != "call_function" and not entry.target.isidentifier():
                raise MalformedPattern(f"a pattern holds {entry.op} {entry.target}")
            if not isinstance(args, tuple) or not isinstance(kwargs, dict):
                raise MalformedPattern(f"the arguments of {entry.name} are no tuple")
            by_name[entry.name] = graph.create_node(entry.op, target, args, kwargs, name=entry.name)
        graph.lint()
        _check_interface(graph)
    except (ValueError, TypeError, KeyError, AttributeError, RuntimeError, RecursionError) as error:
        raise MalformedPattern(f"a pattern is malformed: {type(error).__name__}: {error}"[:300]) from error
    return graph


def _check_interface(graph: fx.Graph) -> None:
    """Raise MalformedPattern for a parameter that no operator uses, and for results that are no nodes."""
    *inner, last = graph.nodes
    returned = last.args[0] if last.op == "output" and last.args else None
    results = returned if isinstance(returned, (tuple, list)) else [returned]
    if not results or not all(isinstance(node, fx.Node) for node in results):
        raise MalformedPattern("a pattern does not return nodes")
    parameters = [node for node in inner if node.op == "placeholder"]
    if len({node.target for node in parameters}) < len(parameters):
        raise MalformedPattern("a pattern has two parameters of one name")
    unused = next((node for node in parameters if not node.users.keys() - {last}), None)
    if unused is not None or any(node.op == "output" for node in inner):
        raise MalformedPattern(f"a pattern uses {unused or 'its output'} in no operator, or returns twice")


def planned_passes(recording: Recording) -> list[PlannedPass]:
    """The passes of a recording, by what they match. Raises MalformedPattern."""
    return [PlannedPass(p.name, p.file, pattern_graph(p.pattern)) for p in recording.passes]


def replace_calls(
    graph: fx.Graph,
    passes: Sequence[PlannedPass],
    calls: Sequence[Call],
    replacement: Callable[[int, Bindings], tuple[Callable[..., Any], tuple[Any, ...]]],
    check: bool = False,
) -> None:
    """Put a replacement in the place of each call, one after another; changes the graph.

    `replacement` gives the function and its arguments for the position of a call and the values of its
    pattern's parameters. With `check` the number of outputs is checked at each call. Raises PlanError where
    a call is not in a place of its pattern.
    """
    for position, call in enumerate(calls):
        planned = passes[call.number]
        try:
            matched = match_at(planned.pattern_graph, graph, call.nodes)
        except MatchError as error:
            raise PlanError(f"call {position}, of {planned.name}, is not where it says: {error}") from error
        function, args = replacement(position, matched.bindings)
        if check:
            function = checked(function, planned)
        replace_match(graph, planned, matched, function, args)
    graph.lint()


def check_calls(recording: Recording) -> list[PlannedPass]:
    """The recording's passes.

    Raises MalformedPattern for a pattern of no graph, or a call given what its pattern does not have.
    """
    passes = planned_passes(recording)
    parameters = [{node.target for node in p.pattern_graph.find_nodes(op="placeholder")} for p in passes]
    for call in (call for subgraph in recording.subgraphs for call in subgraph.calls):
        for leaf in (leaf for argument in call.arguments for leaf in leaves(argument)):
            if isinstance(leaf, ParameterArg) and leaf.name.partition("[")[0] not in parameters[call.number]:
                raise MalformedPattern(f"a call is given {leaf.name}, which its pattern does not have")
    return passes


def _function(name: str) -> Callable[..., Any]:
    """An operator by name: an attribute of torch's, of operator's or math's. Imports nothing."""
    module, _, path = name.partition(":")
    if name == "builtins:getattr":
        return getattr
    first, *inner = module.split(".")
    member: Any = _MODULES.get(first)
    for part in [*inner, *path.split(".")]:
        member = vars(member).get(part) if isinstance(member, type) else getattr(member, part, None)
    if not is_operator(member) and getattr(member, "__module__", None) != "math":
        raise MalformedPattern(f"a pattern calls {name}, which is no operator of torch {torch.__version__}")
    return member  # type: ignore[no-any-return]


def _load(word: str, data: Any) -> Any:
    """The value behind a word of graphio's; a name is looked up where it is one of its kind."""
    kind = _TORCH_VALUES.get(word)
    is_known = isinstance(getattr(torch, data, None), kind) if kind else word in graphio.LOADS
    if not is_known or (word == "type" and data not in _TYPES):
        raise MalformedPattern(f"a pattern holds a {word}: {data}"[:200])
    return graphio.LOADS[word](data)
