"""The node tree of a run: as text, and as places in a picture, thinned to the most promising."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from passagent.agent.prompt import plain_note, short_note
from passagent.search import finalists
from passagent.store import Store
from passagent.store.nodes import Node, of_run
from passagent.store.runs import SEEDS
from passagent.view.charts import Made
from passagent.view.text import number, width

MAX_NODES = 400
"""Nodes shown; of a larger tree the newest are left out."""


def node_row(node: Node) -> dict[str, Any]:
    """A node as plain data, by its first measurement."""
    return {
        "node": node.id,
        "parent": node.parent_id,
        "island": node.island,
        "episode": node.episode_id,
        "state": node.state,
        "status": node.status,
        "as_score": node.as_score,
        "note": plain_note(node.note),
        "files": node.candidate_key,
        "created_at": node.created_at,
    }


def run_tree(store: Store, run_id: str) -> str:
    """Write the tree of a stored run; see `tree_text`."""
    best = finalists.winner(store, run_id)
    again = finalists.scores(finalists.last_series(store, run_id))
    return tree_text(of_run(store, run_id), best.id if best else None, again)


def tree_text(nodes: list[Node], best: int | None, again: Mapping[int, float | None]) -> str:
    """Parents above their children, which are indented; `*` marks the best node.

    `again`: the AS of those that were measured again.
    """
    listed_nodes = nodes[:MAX_NODES]
    children: dict[int | None, list[Node]] = {}
    ids = {node.id for node in listed_nodes}
    for node in listed_nodes:
        children.setdefault(node.parent_id if node.parent_id in ids else None, []).append(node)
    lines = ["task"]
    stack = [(node, 1) for node in reversed(children.get(None, []))]
    while stack:
        node, depth = stack.pop()
        score = f" AS {number(node.as_score)}" if node.as_score is not None else ""
        if (mean := again.get(node.id)) is not None:
            score = f" AS {number(mean)}, measured again (first {number(node.as_score)})"
        repeat = f" (equal to {node.repeat_of})" if node.repeat_of else ""
        mark = " *" if node.id == best else ""
        place = "seed" if node.island == SEEDS else f"island {node.island}"
        line = f"{'  ' * min(depth, 20)}{node.id} {place} {node.status or node.state}{score}{repeat}{mark}"
        room = max(20, width() - len(line) - 2)
        note = textwrap.shorten(short_note(node.note), room, placeholder="...")
        lines.append(f"{line}: {note}" if node.note else line)
        stack += [(child, depth + 1) for child in reversed(children.get(node.id, []))]
    if len(nodes) > len(listed_nodes):
        lines.append(f"... and {len(nodes) - len(listed_nodes)} more nodes")
    return "\n".join(lines)


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
    """Descendants that are not drawn, but for those of drawn children."""


@dataclass(frozen=True)
class Layout:
    """The picture."""

    placed: list[Placed]
    """Parents before their children."""
    depth: int
    """Levels."""
    nodes: int
    """Nodes of the whole tree."""


def layout(nodes: Sequence[Made], best: int | None) -> Layout:
    """Place of each level at most LEVEL nodes: the lineage of `best`, then those that led furthest."""
    children: dict[int | None, list[Made]] = {}
    parents, lineage = {node.id: node.parent for node in nodes}, set[int]()
    for node in nodes:
        children.setdefault(node.parent if node.parent in parents else None, []).append(node)
    size, reach = _below(nodes)
    while best in parents:
        lineage.add(best)
        best = parents[best]
    placed: list[Placed] = []
    level: list[Placed | None] = [None]
    depth = 0
    while level:
        depth += 1
        pairs = [
            (parent, node)
            for parent in level
            for node in children.get(parent.node.id if parent else None, ())
        ]
        ranked = sorted(
            pairs, key=lambda pair: (pair[1].id in lineage, reach[pair[1].id], size[pair[1].id]), reverse=True
        )
        drawn = {node.id for _, node in ranked[:LEVEL]}
        for parent, node in ranked[LEVEL:]:
            if parent:
                parent.hidden += size[node.id]
        placed_pairs = [(parent, node) for parent, node in pairs if node.id in drawn]
        next_level = [
            Placed(node, depth, place / (len(placed_pairs) + 1), parent, node.id in lineage)
            for place, (parent, node) in enumerate(placed_pairs, 1)
        ]
        placed += next_level
        level = list(next_level)
    return Layout(placed, depth - 1, len(nodes))


def _below(nodes: Sequence[Made]) -> tuple[dict[int, int], dict[int, float]]:
    """Return for each node how many come of it, itself included, and the best AS among them."""
    size = {node.id: 1 for node in nodes}
    reach = {node.id: (node.as_score or 0.0) if node.status == "ok" else 0.0 for node in nodes}
    for node in reversed(nodes):  # a parent is older than its children
        if node.parent in size:
            size[node.parent] += size[node.id]
            reach[node.parent] = max(reach[node.parent], reach[node.id])
    return size, reach
