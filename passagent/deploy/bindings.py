"""What a match binds to a pattern's parameters, split into the tensors of a call and all that is fixed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx

from passagent.evaluator.matching.pattern import PassLoadError
from passagent.tasks.graphio import load_value, plain_value

Skeleton = dict[str, Any]
"""For each parameter `{"tensor": N}`, `{"value": literal}`, or of a list with tensors `{"items": [...]}`."""


def split(bindings: Mapping[str, Any]) -> tuple[Skeleton, list[fx.Node]]:
    """The skeleton of a match's bindings, and the nodes at its tensors."""
    tensors: list[fx.Node] = []

    def shape(value: Any) -> Any:
        if isinstance(value, fx.Node):
            tensors.append(value)
            return {"tensor": len(tensors) - 1}
        if isinstance(value, tuple | list) and any(isinstance(one, fx.Node) for one in value):
            return {"items": [shape(one) for one in value], "is_list": isinstance(value, list)}
        return {"value": plain_value(value)}

    return {name: shape(bindings[name]) for name in sorted(bindings)}, tensors


def join(skeleton: Skeleton, tensors: Sequence[Any]) -> dict[str, Any]:
    """Bindings with these tensors, or nodes, in their places."""

    def value(part: Any) -> Any:
        if "tensor" in part:
            return tensors[part["tensor"]]
        if "items" in part:
            return (list if part["is_list"] else tuple)(value(one) for one in part["items"])
        return load_value(part["value"], {})

    return {name: value(part) for name, part in skeleton.items()}


def tensor_count(skeleton: Skeleton) -> int:
    """How many tensors a call is given."""

    def count(part: Any) -> int:
        return 1 if "tensor" in part else sum(map(count, part.get("items", ())))

    return sum(map(count, skeleton.values()))


def pattern_module(pattern: fx.Graph, skeleton: Skeleton) -> fx.GraphModule:
    """What the pattern computes of a call's tensors: a function of these alone, which returns a tuple."""
    graph = fx.Graph()
    given = [graph.placeholder(f"a{number}") for number in range(tensor_count(skeleton))]
    bound = join(skeleton, given)
    known: dict[fx.Node, Any] = {}
    for node in pattern.nodes:
        if node.op == "placeholder":
            if str(node.target) not in bound:
                raise PassLoadError(f"the pattern's parameter {node.target} is bound to nothing")
            known[node] = bound[str(node.target)]
        elif node.op != "output":
            args, kwargs = fx.node.map_aggregate(
                (node.args, node.kwargs), lambda one: known[one] if isinstance(one, fx.Node) else one
            )
            known[node] = graph.create_node(node.op, node.target, args, kwargs)
    returned = next(node for node in reversed(pattern.nodes) if node.op == "output").args[0]
    outputs = returned if isinstance(returned, tuple | list) else (returned,)
    graph.output(tuple(known[node] for node in outputs))  # type: ignore[index]
    return fx.GraphModule(torch.nn.Module(), graph)
