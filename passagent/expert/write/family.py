"""A family of regions: what its route is given, and the routes that need no kernel."""

from __future__ import annotations

import copy
import operator
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from passagent.evaluator.matching.matcher import first_match
from passagent.evaluator.matching.pattern import trace_pattern
from passagent.evaluator.matching.rewrite import PlannedPass, replace_match
from passagent.expert.graph import arguments, example, op_name, words
from passagent.expert.lower.region import Parameter, Region
from passagent.expert.read import pattern_text
from passagent.expert.read.fusible_regions import does_nothing
from passagent.expert.read.pattern_text import write_pattern
from passagent.expert.write.routes import Route, ViewRoute


@dataclass
class Family:
    """Regions of several graphs that one pattern matches."""

    regions: list[Region]
    parameters: list[Parameter]
    names: dict[fx.Node, str]
    """Names of the first region's inputs and nodes."""


def named(region: Region, family: Family) -> dict[str, Any]:
    """The arguments of a family's region: shapes of its inputs, values of the pattern's parameters."""
    args: dict[str, Any] = {p.name: dict(arguments(region.nodes[p.node]))[p.path] for p in family.parameters}
    for first, node in zip(family.regions[0].inputs, region.inputs, strict=True):
        value = example(node)
        args[family.names[first]] = tuple(value.shape) if isinstance(value, torch.Tensor) else value
    return args


def view_route(family: Family) -> ViewRoute:
    """Views need no kernel: the wrapper takes them itself, without the operators that do nothing."""
    region, body = family.regions[0], view_lines(family)
    inputs = [family.names[i] for i in region.inputs]
    return ViewRoute(identifier(region), inputs, used_in(family, body), body)


def used_in(family: Family, lines: list[str]) -> list[str]:
    """Parameters of the pattern that the lines name."""
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


def matching(families: Sequence[Family], graphs: Sequence[fx.Graph]) -> list[bool]:
    """Tell for each family whether its pass matches in a graph, after the passes before it."""
    passes = [PlannedPass(str(number), "", _pattern(family)) for number, family in enumerate(families)]
    matches = [False] * len(passes)
    for graph in map(copy.deepcopy, graphs):
        for number, loaded in enumerate(passes):
            while (match := first_match(loaded.pattern_graph, graph)) is not None:
                replace_match(graph, loaded, match, replacement=_call)
                matches[number] = True
    return matches


def _pattern(family: Family) -> fx.Graph:
    """The graph of the family's pattern, as the evaluator reads it."""
    text = "\n".join(write_pattern(family.regions[0], family.parameters, family.names))
    names: dict[str, Any] = {"torch": torch, "operator": operator}
    exec(text, names)
    return trace_pattern(names["pattern"], text, "pattern")


def _call(bindings: dict[str, Any]) -> tuple[Any, tuple[Any, ...]]:
    return _replaced, tuple(bindings.values())


def _replaced(*_: Any) -> None:
    """Stands in a graph for a pass's function."""


_QUIET = words("""
    getitem view reshape flatten contiguous to float type_as dropout detach
    unsqueeze squeeze expand expand_as permute transpose
""")
_SPOKEN = {"iadd": "add", "imul": "mul", "isub": "sub", "truediv": "div", "itruediv": "div"}
_SPOKEN |= {"adaptive_avg_pool2d": "pool"}


def title(region: Region) -> str:
    """The operators that say what a region does, such as `add + layer_norm`."""
    spoken = [
        _SPOKEN.get(op_name(n), op_name(n).strip("_")) for n in region.nodes if op_name(n) not in _QUIET
    ]
    spoken = spoken or [op_name(n) for n in region.nodes]
    short = [w for k, w in enumerate(spoken) if k == 0 or spoken[k - 1] != w]
    return " + ".join(short if len(short) <= 6 else [*short[:3], "...", *short[-2:]])


def kind(route: Route | ViewRoute) -> str:
    if not isinstance(route, Route):
        return "as views, without a kernel"
    most = 1 + max(len(v.before) for v in route.variants)
    return "in one kernel" if most == 1 else f"in {most} kernels"


def identifier(region: Region) -> str:
    words = [w for w in re.sub(r"\W+", " ", title(region)).split() if w]
    return "_".join(["fused", *words])


def pass_name(name: str) -> str:
    return "Fuse" + "".join(w.capitalize() for w in name.removeprefix("fused_").split("_"))
