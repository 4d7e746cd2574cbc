"""Apply passes to a captured graph: each match becomes one call of the pass's replacement function."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from passagent.evaluator.matching.effects import Memory, is_pure
from passagent.evaluator.matching.loaded_passes import LoadedPass, PlannedPass
from passagent.evaluator.matching.matcher import Match, explain, first_match, returned
from passagent.evaluator.matching.pattern import PassLoadError, nodes_in
from passagent.evaluator.result import Mismatch


@dataclass
class Rewritten:
    """A graph with its replacements made."""

    graph_module: fx.GraphModule
    applied: list[str] = field(default_factory=list)
    """Name of the pass behind each replacement, in order."""
    places: list[tuple[str, ...]] = field(default_factory=list)
    """For each replacement the names of the nodes that it replaced, in the order of its pattern."""
    mismatches: list[Mismatch] = field(default_factory=list)
    """The best attempt of each pass that matched nowhere."""


@dataclass(frozen=True)
class Token:
    """Stands for a node of the graph while replacement_args arranges its arguments."""

    parameter: str


def apply_passes(
    graph_module: fx.GraphModule,
    passes: Sequence[LoadedPass],
    function_of: Callable[[LoadedPass], Callable[..., Any]] = operator.attrgetter("replacement_func"),
) -> Rewritten:
    """Replace, pass by pass, every match that does not overlap an earlier one; changes `graph_module`.

    `function_of` gives the function that a match is replaced by, as it is called when it is recorded. Raises
    PassLoadError if a pass's replacement_args fails or returns what is no tuple of its parameters and
    constants.
    """
    graph = graph_module.graph
    result = Rewritten(graph_module)
    for loaded in passes:
        count = 0
        while (matched := first_match(loaded.pattern_graph, graph)) is not None:
            result.places.append(tuple(node.name for node in matched.nodes.values()))
            args = arguments_of(loaded, matched)
            replace_match(graph, loaded, matched, function_of(loaded), args)
            count += 1
        result.applied += [loaded.name] * count
        if not count:
            result.mismatches.append(explain(loaded.pattern_graph, graph, loaded.name))
    graph.lint()
    graph_module.recompile()
    return result


def replace_match(
    graph: fx.Graph,
    planned: PlannedPass,
    matched: Match,
    function: Callable[..., Any],
    args: tuple[Any, ...],
) -> fx.Node:
    """Put one call of `function` in place of a match. Its node is named `call`, or by the operator."""
    memory = Memory(graph)
    inside = set(matched.nodes.values())
    last = max(inside, key=memory.position.__getitem__)
    written = memory.writes(inside)
    is_operator = isinstance(function, torch._ops.OpOverload)  # which gives one tensor as it is
    with graph.inserting_after(last):
        call = graph.create_node("call_function", function, args, name=None if is_operator else "call")
    call.meta["replacement"] = planned.name
    # for the order of what comes around the call
    call.meta["writes"] = [
        i for i, value in enumerate(args) if isinstance(value, fx.Node) and memory.roots[value] & written
    ]
    count, values = len(matched.outputs), [call]
    if _returns_many(planned) and not (is_operator and count == 1):
        part = _getitem if count == 1 else operator.getitem
        places: list[tuple[Any, ...]] = [(call,)] if count == 1 else [(call, i) for i in range(count)]
        with graph.inserting_before(call.next):
            values = [graph.create_node("call_function", part, at, name="call_output") for at in places]
    tail = values[-1]
    for follower in matched.followers:
        tail.append(follower)
        tail = follower
    after = {node: i for i, node in enumerate(graph.nodes)}
    for output, value, source in zip(returned(planned.pattern_graph), matched.outputs, values, strict=True):
        if output.op != "placeholder":
            source.meta.update({k: v for k, v in value.meta.items() if k == "example_value"})
            value.replace_all_uses_with(source, delete_user_cb=lambda user: user not in inside)
        elif isinstance(value, fx.Node) and memory.roots[value] & written:
            # A parameter that the match writes and returns: from here on its value is the replacement's.
            later = {user for user in value.users if user not in inside and after[user] > after[source]}
            value.replace_all_uses_with(source, delete_user_cb=later.__contains__)
    inputs = [node for value in matched.bindings.values() for node in nodes_in(value)]
    for node in reversed([node for node in graph.nodes if node in inside]):
        graph.erase_node(node)
    for value in reversed(values):
        if value is not call and not value.users:
            graph.erase_node(value)
    _sweep(graph, inputs)
    return call


def _returns_many(planned: PlannedPass) -> bool:
    """Tell whether the pattern returns a tuple or list, if only of one value."""
    return isinstance(planned.pattern_graph.output_node().args[0], (tuple, list))


def _getitem(value: Any) -> Any:
    """The output where the pattern returns a 1-tuple: a replacement may return the tensor or a 1-tuple."""
    return value if isinstance(value, torch.Tensor) else value[0]


def checked(function: Callable[..., Any], planned: PlannedPass) -> Callable[..., Any]:
    """The function, but an error that tells if it does not return as many values as the pattern."""
    count, many = len(returned(planned.pattern_graph)), _returns_many(planned)

    def called(*args: Any) -> Any:
        result = function(*args)
        got = len(result) if isinstance(result, (tuple, list)) else None
        if (count > 1 and got != count) or (not many and got is not None):
            what = f"returns {count} values" if many else "returns one value"
            values = f"a {type(result).__name__}" if got is None or not many else f"{got} values"
            raise RuntimeError(f"{planned.name}: pattern {what}, its replacement function returned {values}")
        return result

    called.__name__ = function.__name__
    return called


def arguments_of(loaded: LoadedPass, matched: Match) -> tuple[Any, ...]:
    """Call the pass's replacement_args on the match; nodes are hidden behind tokens while it runs."""
    tokens: dict[str, fx.Node] = {}

    def hide(name: str, value: Any) -> Any:
        if isinstance(value, fx.Node):
            tokens[name] = value
            return Token(name)
        if isinstance(value, (tuple, list)):
            return tuple(hide(f"{name}[{i}]", item) for i, item in enumerate(value))
        return value

    def show(value: Any) -> Any:
        if isinstance(value, Token):
            return tokens[value.parameter]
        if isinstance(value, (tuple, list)):
            return tuple(show(item) for item in value)
        if value is None or isinstance(
            value, (int, float, str, complex, torch.dtype, torch.device, torch.memory_format)
        ):
            return value
        if isinstance(value, slice):
            return slice(show(value.start), show(value.stop), show(value.step))
        if value is ...:
            return value
        kind = type(value).__name__
        raise PassLoadError(
            f"{loaded.file}: replacement_args returned a {kind}; return its parameters and constants"
        )

    parameters = (str(node.target) for node in loaded.pattern_graph.find_nodes(op="placeholder"))
    arguments = [hide(name, matched.bindings[name]) for name in parameters]
    try:
        result = loaded.replacement_args(*arguments)
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        raise PassLoadError(
            f"{loaded.file}: replacement_args failed: {text}; it may only arrange values"
        ) from error
    if not isinstance(result, (tuple, list)):
        kind = type(result).__name__
        raise PassLoadError(f"{loaded.file}: replacement_args must return a tuple of arguments, not a {kind}")
    return tuple(show(item) for item in result)


def _sweep(graph: fx.Graph, nodes: list[fx.Node]) -> None:
    """Erase what only the replaced operators needed; what had no users before stays, as in eager."""
    pending = list(nodes)
    while pending:
        node = pending.pop()
        if node.users or not is_pure(node) or node.graph is not graph or node._erased:
            continue
        inputs = node.all_input_nodes
        graph.erase_node(node)
        pending += inputs
