"""The node tree of a run as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from passagent.agent.prompt import plain_note, short_note
from passagent.store.nodes import Node
from passagent.store.runs import SEEDS
from passagent.view.text import number, shortened, width

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


def tree_text(nodes: list[Node], best: int | None, again: Mapping[int, float | None]) -> str:
    """Parents above their children, which are indented; `*` marks the best node.

    `again`: the AS of those that were measured again.
    """
    shown = nodes[:MAX_NODES]
    children: dict[int | None, list[Node]] = {}
    ids = {node.id for node in shown}
    for node in shown:
        children.setdefault(node.parent_id if node.parent_id in ids else None, []).append(node)
    lines = ["task"]
    stack = [(node, 1) for node in reversed(children.get(None, []))]
    while stack:
        node, depth = stack.pop()
        lines.append(_line(node, depth, node.id == best, again.get(node.id)))
        stack += [(child, depth + 1) for child in reversed(children.get(node.id, []))]
    if len(nodes) > len(shown):
        lines.append(f"... and {len(nodes) - len(shown)} more nodes")
    return "\n".join(lines)


def _line(node: Node, depth: int, is_best: bool, again: float | None) -> str:
    verdict = node.status or node.state
    score = f" AS {number(node.as_score)}" if node.as_score is not None else ""
    if again is not None:
        score = f" AS {number(again)}, measured again (first {number(node.as_score)})"
    repeat = f" (equal to {node.repeat_of})" if node.repeat_of else ""
    mark = " *" if is_best else ""
    place = "seed" if node.island == SEEDS else f"island {node.island}"
    line = f"{'  ' * min(depth, 20)}{node.id} {place} {verdict}{score}{repeat}{mark}"
    room = max(20, width() - len(line) - 2)
    return f"{line}: {shortened(short_note(node.note), room)}" if node.note else line
