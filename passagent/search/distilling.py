"""The hint distiller in a search: each episode that ended with progress is asked about once.

Kernel Foundry 3.4. That it is to be asked about is stored with the episode's end, so after a process that
died in between the next one asks. Its calls are counted as the agent's are, under the role `hint_distiller`;
a reply and what came of it are stored together, so that no episode is paid for twice.
"""

from __future__ import annotations

import logging
from dataclasses import asdict, replace

from passagent.agent import distiller
from passagent.agent.distiller import ROLE, Improvement, Side
from passagent.evaluator.result import Evaluation
from passagent.evaluator.target import kind_of
from passagent.experience.hints import LearnedHint
from passagent.models.meter import metered
from passagent.models.types import Model, Reply
from passagent.search.gathering import diagnosis_of
from passagent.search.session import Session, Stopping
from passagent.search.writers import meter_of
from passagent.store import episodes, evaluations, hint_uses, ledger, nodes
from passagent.store.episodes import Episode
from passagent.store.nodes import Node

log = logging.getLogger("passagent.search")


async def distil(session: Session, island: int, is_last: bool = False) -> None:
    """Ask about the island's episodes that ended with progress and were not asked about yet.

    Raises what the model raises, and Stopping where a budget has no room, or where the session is to stop,
    unless this `is_last` (Session.admit).
    """
    if session.distiller is None:
        return
    for episode_id in hint_uses.undistilled(session.store, session.run.id, island):
        await _ask(session, session.distiller, episodes.get_episode(session.store, episode_id), is_last)


async def distil_rest(session: Session) -> None:
    """Before a run is over: the progress that ended it, too, as far as the budgets go.

    An episode in which the target was met has not come to its end: it is gone on with should the run be.
    """
    target = session.config.search.target_as
    if session.distiller is None:
        return
    for episode in episodes.running(session.store, session.run.id):
        best = _best(session, episode)
        if target is None or best is None or best.repeat_of is not None or (best.as_score or 0.0) < target:
            continue
        hint_uses.want_distilled(session.store, episode)
    try:
        for island in range(session.run.islands):
            await distil(session, island, is_last=True)
    except Stopping as stopping:
        log.info("not all progress is distilled: %s", stopping)


async def _ask(session: Session, model: Model, episode: Episode, is_last: bool) -> None:
    store, run, best = session.store, session.run, _best(session, episode)
    assert best is not None and session.memory is not None
    task_hashes = session.memory.marks
    meter = meter_of(session, replace(episode, model=model.name), ROLE, is_last)
    parent = None if episode.parent_id is None else nodes.get_node(store, episode.parent_id)
    improvement = Improvement(
        task=session.task,
        target=kind_of(run.device),
        diagnosis=diagnosis_of(parent),
        before=_side(session, parent) if parent else None,
        after=_side(session, best),
        hint_id=f"run-{run.id}-episode-{episode.number}",
        source=f"run {run.id}, episode {episode.number}",
    )

    def save(reply: Reply, hint: LearnedHint | None) -> None:
        written = hint.model_dump() if hint else None
        with store.transaction():
            meter.settle(reply.usage, reply.stop_reason)
            ledger.count(store, episode, asdict(reply.usage))
            hint_uses.settle_distilled(store, episode.id, written, best.id, model.name, task_hashes)
        session.events.look()

    await distiller.ask(metered(model, meter), improvement, save)


def _best(session: Session, episode: Episode) -> Node | None:
    """The best correct node of an episode, also of one that goes on."""
    right = [node for node in nodes.of_episode(session.store, episode.id) if node.status == "ok"]
    return max(right, key=lambda node: (node.as_score or 0.0, -node.id), default=None)


def _side(session: Session, node: Node) -> Side:
    assert node.evaluation_id is not None
    result = evaluations.get_evaluation(session.store, node.evaluation_id)
    return Side(nodes.get_files(session.store, node), Evaluation.model_validate(result))
