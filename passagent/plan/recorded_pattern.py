"""A recorded pattern as a graph to match with, on the trusted side: every name is looked up, nothing is run.

It stays a `torch.fx.Graph`: no GraphModule is made of it, whose code would be written from its names.
"""

from __future__ import annotations

import builtins
import keyword
import math
import operator
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import fx

from passagent.errors import PassagentError
from passagent.evaluator.matching.pattern import is_operator
from passagent.plan.arguments import ParameterArg, leaves
from passagent.plan.model import PatternNode, Recording

_MODULES = {"torch": torch, "operator": operator, "_operator": operator, "math": math}
_TORCH_VALUES = {"dtype": torch.dtype, "memory_format": torch.memory_format, "layout": torch.layout}
_TYPES = {"bool": bool, "int": int, "float": float, "complex": complex}


class MalformedPattern(PassagentError):
    """A recorded pattern is no graph of operators that this torch has."""


def pattern_graph(nodes: Iterable[PatternNode]) -> fx.Graph:
    """The graph. Raises MalformedPattern."""
    graph, by_name = fx.Graph(), dict[str, fx.Node]()
    try:
        for entry in nodes:
            if entry.name in by_name or keyword.iskeyword(entry.name):
                raise MalformedPattern(f"a pattern has two nodes {entry.name}, or one of that name cannot be")
            args, kwargs = _value(entry.args, by_name), _value(entry.kwargs or {"dict": []}, by_name)
            target = _function(entry.target) if entry.op == "call_function" else entry.target
            if entry.op != "call_function" and not entry.target.isidentifier():
                raise MalformedPattern(f"a pattern holds {entry.op} {entry.target}")
            if not isinstance(args, tuple) or not isinstance(kwargs, dict):
                raise MalformedPattern(f"the arguments of {entry.name} are no tuple")
            by_name[entry.name] = graph.create_node(entry.op, target, args, kwargs, name=entry.name)
        graph.lint()
    except (ValueError, TypeError, KeyError, AttributeError, RuntimeError, RecursionError) as error:
        raise MalformedPattern(f"a pattern is malformed: {type(error).__name__}: {error}"[:300]) from error
    return graph


def check_calls(recording: Recording) -> None:
    """Raise MalformedPattern for a pattern of no graph, or a call given what its pattern does not have."""
    graphs = [pattern_graph(recorded.pattern) for recorded in recording.passes]
    parameters = [{node.target for node in graph.find_nodes(op="placeholder")} for graph in graphs]
    for call in (call for subgraph in recording.subgraphs for call in subgraph.calls):
        for leaf in (leaf for argument in call.arguments for leaf in leaves(argument)):
            if isinstance(leaf, ParameterArg) and leaf.name.partition("[")[0] not in parameters[call.number]:
                raise MalformedPattern(f"a call is given {leaf.name}, which its pattern does not have")


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


def _value(value: Any, nodes: dict[str, fx.Node]) -> Any:  # noqa: PLR0911
    """An argument, as tasks/graphio.py writes it."""
    if not isinstance(value, dict):
        if isinstance(value, list):
            raise MalformedPattern("a pattern holds a bare list")
        return value
    if len(value) != 1:
        raise MalformedPattern("a pattern holds a value of several kinds")
    ((kind, data),) = value.items()
    match kind:
        case "node":
            return nodes[data]
        case "tuple":
            return tuple(_value(item, nodes) for item in data)
        case "list":
            return [_value(item, nodes) for item in data]
        case "dict":
            return {str(key): _value(item, nodes) for key, item in data}
        case "slice":
            start, stop, step = (_value(item, nodes) for item in data)
            return slice(start, stop, step)
        case "size":
            return torch.Size([operator.index(item) for item in data])
        case "float":
            return float(data)
        case "complex":
            return complex(*data)
        case "ellipsis":
            return ...
        case "device":
            return torch.device(str(data))
        case "type" if data in _TYPES:
            return getattr(builtins, data)
        case _ if kind in _TORCH_VALUES and isinstance(getattr(torch, str(data), None), _TORCH_VALUES[kind]):
            return getattr(torch, str(data))
    raise MalformedPattern(f"a pattern holds a {kind}: {data}"[:200])
