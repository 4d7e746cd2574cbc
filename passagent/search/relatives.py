"""An episode's memory: what else was made from its parent, before it and beside it, and what came of it."""

from __future__ import annotations

from itertools import chain, zip_longest

from passagent.agent.context import Attempt
from passagent.agent.failure import first_error
from passagent.evaluator.result import Evaluation
from passagent.search.changes import changes
from passagent.store import Store, bests, evaluations, nodes
from passagent.store.episodes import Episode
from passagent.store.nodes import Node
from passagent.store.runs import SEEDS

MAX_TOLD, MAX_FILES = 1024, 3
"""Attempts kept in mind, and changed files named of each."""
Told = dict[tuple[int, int | None], tuple[str, str]]
"""Of a node and its evaluation: what was changed, and why it failed."""


def relatives(store: Store, episode: Episode, parent: Node | None, limit: int) -> list[Node]:
    """The candidates nearest to the start of `episode`, at most `limit`, in the order of their making.

    In turn one of the parent's ancestors, of what its own episode made after it, and of what later episodes
    of the island made from it (or from the task). Places left over go to the island's newest other nodes,
    then to the seeds. Only what was finished before the episode began is looked at, so the same is found
    whichever island is faster.
    """
    run_id, island = episode.run_id, episode.island
    ahead = nodes.ancestors(store, parent.id, limit) if parent else []
    beside = nodes.later_in_episode(store, parent, limit) if parent else []
    after = nodes.siblings(store, run_id, island, episode.parent_id, limit)
    others = nodes.newest_before(store, episode, limit, 3 * limit + 1)
    seeds = bests.best_of_island(store, run_id, SEEDS, limit + 1)
    nearest = chain(*zip_longest(ahead, beside, after), others, seeds)
    found: dict[int, Node] = {}
    for node in nearest:
        is_new = node is not None and node.status is not None and node.episode_id != episode.id
        if node is not None and is_new and (parent is None or node.id != parent.id) and len(found) < limit:
            found.setdefault(node.id, node)
    return sorted(found.values(), key=lambda node: (node.number, node.place))


def attempt(store: Store, node: Node, told: Told) -> Attempt:
    """A candidate as a prompt tells of it; `told` keeps what takes long."""
    key = node.id, node.evaluation_id
    if key not in told:
        if len(told) == MAX_TOLD:
            told.clear()
        told[key] = _told(store, node)
    changed, failure = told[key]
    return Attempt(
        node.id, node.status or "", node.as_score, node.note, node.parent_id, changed=changed, failure=failure
    )


def _told(store: Store, node: Node) -> tuple[str, str]:
    files, changed = nodes.get_files(store, node), ""
    if node.parent_id is not None:
        before = nodes.get_files(store, nodes.get_node(store, node.parent_id))
        found = [str(change) for change in changes(before, files)]
        more = len(found) - MAX_FILES
        changed = ", ".join(found[:MAX_FILES] + ([f"{more} more files"] if more > 0 else [])) or "nothing"
    if node.status == "ok" or node.evaluation_id is None:
        return changed, ""
    result = evaluations.get_evaluation(store, node.evaluation_id)
    return changed, first_error(Evaluation.model_validate(result), files)
