"""What a model is told of a candidate that was there before, the same or nearly so.

Only nodes that the episode may know of are named: its own island's and the seeds. So what is said does not
depend on which island is faster.
"""

from __future__ import annotations

import ast

from passagent.search.behaviour import behaviour_of
from passagent.search.canonical import canonical_key
from passagent.search.islandview import IslandView
from passagent.search.session import Session
from passagent.search.similarity import similarity, sketch_of
from passagent.store import nodes
from passagent.store.episodes import Episode
from passagent.store.nodes import Marks, Node
from passagent.store.runs import SEEDS

EPISODES, NODES = 4, 16
"""The newest episodes of the island, and nodes of theirs, that a candidate is compared with."""


def marks_of(files: dict[str, str], candidate_key: str) -> Marks:
    """What is stored with a node so that it can be found again."""
    seen: list[ast.AST] = []
    key = canonical_key(files, candidate_key, seen)
    return Marks(key, behaviour_of(files, seen), sketch_of(files))


def remark(session: Session, episode: Episode, node: Node) -> str:
    """A line on the node's double, or on what it nearly equals; empty for one that is new."""
    same = _double(session, node)
    if same is not None:
        again = "it was not evaluated again"
        if node.evaluation_id != same.evaluation_id:
            again = "it was measured once more"
        return (
            f"this is the same program as node {same.id} ({_result(same)}; comments, formatting and names of "
            f"files make no difference): {again}"
        )
    found = max(
        ((similarity(node.sketch, other.sketch), other) for other in _others(session, episode)
         if node.sketch and other.sketch),
        key=lambda pair: (pair[0], -pair[1].number, -pair[1].place),
        default=None,
    )  # fmt: skip
    if found is None or found[0] < session.config.search.similar:
        return ""
    return (
        f"{found[0]:.0%} of this candidate's source is that of node {found[1].id} ({_result(found[1])}): "
        "a difference of that size seldom matters; unless you tune a parameter, try something else"
    )


def _double(session: Session, node: Node) -> Node | None:
    """The first node with the same program that the island knows of."""
    if node.repeat_of is not None:
        return nodes.get_node(session.store, node.repeat_of)
    if node.island == SEEDS:
        return None
    return nodes.first_of_program(session.store, node.run_id, SEEDS, node.canonical_key)


def _others(session: Session, episode: Episode) -> list[Node]:
    """The island's newest nodes and its elites, but for the episode's own and what it began with."""
    store, run = session.store, session.run
    recent = nodes.newest_before(store, episode, EPISODES, NODES)
    elites = IslandView(store, run.id, episode.island).elites(session.config.search.elites)
    known = {other.id: other for other in [*recent, *elites]}
    return [
        other
        for other in known.values()
        if other.episode_id != episode.id and other.id != episode.parent_id and other.status is not None
    ]


def _result(node: Node) -> str:
    return f"{node.status}, AS {node.as_score:.4f}" if node.as_score is not None else f"{node.status}"
