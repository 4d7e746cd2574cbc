"""What an episode is told: parent, attempts, hints, gathered from the store into an EpisodeContext."""

from __future__ import annotations

import json
import random

from passagent.agent.context import Attempt, EpisodeContext, HintView, ParentView
from passagent.agent.observe import observation
from passagent.evaluator.result import Evaluation
from passagent.experience import retrieve
from passagent.experience.diagnosis import START, Diagnosis
from passagent.search.islandview import IslandView
from passagent.search.session import Session
from passagent.store import evaluations, hints, nodes, runs
from passagent.store.episodes import Episode
from passagent.store.nodes import Node


def episode_context(session: Session, episode: Episode, parent: Node | None) -> EpisodeContext:
    """The context of `episode`, which names its parent; `best_as` is what its island knows of.

    The other islands' best is left out: it depends on which of them is faster.
    """
    best = IslandView(session.store, session.run.id, episode.island).best()
    known = [node.as_score for node in (best, parent) if node and node.status == "ok" and node.as_score]
    return EpisodeContext(
        task=session.task,
        target=target_of(session.run.device),
        device_name=session.device_name,
        role=role_of(session, episode.island),
        seed=episode.seed,
        parent=parent_view(session, parent) if parent else None,
        best_as=max(known, default=None),
        attempts=attempts(session, episode, parent),
        hints=chosen_hints(session, episode, parent),
        migrated=bool(episode.migrated),
        limits=session.config.agent,
    )


def target_of(device: str) -> str:
    """`cuda:1` to `cuda`."""
    return device.partition(":")[0]


def role_of(session: Session, island: int) -> str:
    """The island's role."""
    return runs.islands(session.store, session.run.id)[island].role


def parent_view(session: Session, parent: Node) -> ParentView:
    """The parent as the prompt shows it."""
    assert parent.evaluation_id is not None and parent.status is not None
    evaluation = Evaluation.model_validate(evaluations.get_evaluation(session.store, parent.evaluation_id))
    return ParentView(
        node_id=parent.id,
        as_score=parent.as_score,
        status=parent.status,
        files=nodes.get_files(session.store, parent),
        diagnosis=diagnosis_of(parent).text,
        observation=observation(evaluation),
    )


def diagnosis_of(node: Node | None) -> Diagnosis:
    """The diagnosis stored with a node; of no node: the start."""
    if node is None or node.diagnosis is None:
        return START
    stored = json.loads(node.diagnosis)
    return Diagnosis(stored["label"], stored["text"])


def attempts(session: Session, episode: Episode, parent: Node | None) -> list[Attempt]:
    """The nearest ancestors and newest siblings on the island, at most agent.siblings, in order of making."""
    limit = session.config.agent.siblings
    if not limit:
        return []
    found = nodes.siblings(session.store, session.run.id, episode.island, episode.parent_id, limit)
    if parent is not None:
        found = nodes.ancestors(session.store, parent.id, limit // 2) + found
    chosen = {node.id: node for node in found[:limit]}
    return [
        Attempt(node.id, node.status, node.as_score, node.note)
        for _, node in sorted(chosen.items())
        if node.status is not None
    ]


def chosen_hints(session: Session, episode: Episode, parent: Node | None) -> list[HintView]:
    """Hints for the parent's diagnosis, drawn with the episode's own randomness."""
    limit = session.config.agent.hints
    if not limit:
        return []
    records = hints.statistics(session.store)
    ranked = retrieve(
        session.hints,
        diagnosis_of(parent).label,
        session.task.operators,
        target_of(session.run.device),
        {subgraph.dtype for subgraph in session.task.subgraphs},
        {name: (r.credited, r.total_gain / max(r.credited, 1)) for name, r in records.items()},
        limit,
        rng=random.Random(f"hints:{episode.seed}"),
        island=(episode.island, session.run.islands),
    )
    return [HintView(entry.hint.id, entry.hint.advice) for entry in ranked]
