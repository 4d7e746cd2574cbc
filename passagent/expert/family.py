"""A family of regions: what its route is given, and the routes that need no kernel."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from passagent.expert import pattern_text, wrapper
from passagent.expert.graph import arguments, example
from passagent.expert.lower import Parameter, Region
from passagent.expert.names import identifier
from passagent.expert.region import does_nothing


@dataclass
class Family:
    """Regions of several graphs that one pattern matches."""

    regions: list[Region]
    parameters: list[Parameter]
    names: dict[fx.Node, str]
    """Of the first region's inputs and nodes."""


def named(region: Region, family: Family) -> dict[str, Any]:
    """What one of a family's regions is given: shapes of its inputs, values of the pattern's parameters."""
    given: dict[str, Any] = {p.name: dict(arguments(region.nodes[p.node]))[p.path] for p in family.parameters}
    for first, node in zip(family.regions[0].inputs, region.inputs, strict=True):
        value = example(node)
        given[family.names[first]] = tuple(value.shape) if isinstance(value, torch.Tensor) else value
    return given


def view_route(family: Family) -> wrapper.ViewRoute:
    """Views need no kernel: the wrapper takes them itself, without the operators that do nothing."""
    region, body = family.regions[0], view_lines(family)
    inputs = [family.names[i] for i in region.inputs]
    return wrapper.ViewRoute(identifier(region), inputs, used_in(family, body), body)


def used_in(family: Family, lines: list[str]) -> list[str]:
    """Parameters of the pattern that the lines speak of."""
    return [p.name for p in family.parameters if re.search(rf"\b{p.name}\b", "\n".join(lines))]


def view_lines(family: Family) -> list[str]:
    """The operators of a region that computes nothing, without those that do nothing."""
    region, names = family.regions[0], dict(family.names)
    where = {(p.node, p.path): p.name for p in family.parameters}
    lines = []
    for position, node in enumerate(region.nodes):
        if does_nothing(node):
            names[node] = names[node.all_input_nodes[0]]
            continue

        def leaf(path: Any, value: Any, position: int = position) -> str:
            return (
                names[value]
                if isinstance(value, fx.Node)
                else where.get((position, path)) or pattern_text.literal(value)
            )

        lines.append(f"    {names[node]} = {pattern_text.call(node, leaf)}")
    outputs = [names[o] for o in region.outputs]
    return [*lines, f"    return {', '.join(outputs)}"]
