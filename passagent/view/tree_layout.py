"""Where the nodes of a run are drawn: a level for each generation, thinned to the most promising."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from passagent.view.charts import Made

LEVEL = 48
"""Nodes that are drawn of a generation."""


@dataclass
class Placed:
    """A node in the picture."""

    node: Made
    depth: int
    """1: made from the task itself."""
    x: float
    """0 to 1."""
    parent: Placed | None
    """None: the task."""
    is_lineage: bool
    """It is the best node or an ancestor of it."""
    hidden: int = 0
    """Descendants that are not drawn, its own children's aside."""


@dataclass(frozen=True)
class Layout:
    """The picture."""

    placed: list[Placed]
    """Parents before their children."""
    depth: int
    """Levels."""
    nodes: int
    """Of the whole tree."""


def layout(nodes: Sequence[Made], best: int | None) -> Layout:
    """The tree, of each level at most LEVEL nodes: the lineage of `best`, then those that led furthest."""
    children: dict[int | None, list[Made]] = {}
    known = {node.id for node in nodes}
    for node in nodes:
        children.setdefault(node.parent if node.parent in known else None, []).append(node)
    size, reach = _below(nodes)
    lineage = _lineage(nodes, best)
    placed: list[Placed] = []
    level: list[Placed | None] = [None]
    depth = 0
    while level:
        depth += 1
        found = [
            (parent, node)
            for parent in level
            for node in children.get(parent.node.id if parent else None, ())
        ]
        ranked = sorted(
            found, key=lambda one: (one[1].id in lineage, reach[one[1].id], size[one[1].id]), reverse=True
        )
        kept = {node.id for _, node in ranked[:LEVEL]}
        for parent, node in ranked[LEVEL:]:
            if parent:
                parent.hidden += size[node.id]
        shown = [(parent, node) for parent, node in found if node.id in kept]
        level = []
        for x, (parent, node) in zip(_spread([parent for parent, _ in shown]), shown, strict=True):
            level.append(Placed(node, depth, x, parent, node.id in lineage))
        placed += [one for one in level if one]
    return Layout(placed, depth - 1, len(nodes))


def _below(nodes: Sequence[Made]) -> tuple[dict[int, int], dict[int, float]]:
    """Of each node how many come of it, itself included, and the best AS among them."""
    size = {node.id: 1 for node in nodes}
    reach = {node.id: (node.as_score or 0.0) if node.status == "ok" else 0.0 for node in nodes}
    for node in reversed(nodes):  # a parent is older than its children
        if node.parent in size:
            size[node.parent] += size[node.id]
            reach[node.parent] = max(reach[node.parent], reach[node.id])
    return size, reach


def _lineage(nodes: Sequence[Made], best: int | None) -> set[int]:
    parents = {node.id: node.parent for node in nodes}
    found = set()
    while best in parents:
        found.add(best)
        best = parents[best]
    return found


def _spread(parents: list[Placed | None]) -> list[float]:
    """Places for the children of these, in their order: near their parents, never too near to each other."""
    gap = 1 / (LEVEL + 1)
    places: list[float] = []
    for number, parent in enumerate(parents):
        own = [i for i, one in enumerate(parents) if one is parent]
        wish = (parent.x if parent else 0.5) + (number - own[0] - (len(own) - 1) / 2) * gap
        places.append(max(wish, places[-1] + gap if places else gap))
    limit = 1 - gap
    for number in range(len(places) - 1, -1, -1):
        places[number] = min(places[number], limit)
        limit = places[number] - gap
    return places
