"""The models of a run: who writes an episode, who else is asked, and what calls may take of budgets.

The hint distiller (Kernel Foundry 3.4) is asked once about each episode that ended with progress. That it is
to be asked is stored with the episode's end, so the next process asks after a crash. A reply and its outcome
are stored together, so nothing is paid for twice.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from passagent.agent import distiller
from passagent.agent.distiller import Improvement
from passagent.config import ModelChoice
from passagent.evaluator.target import kind_of
from passagent.experience.hints import LearnedHint
from passagent.extend import Model
from passagent.models import open_model
from passagent.models.ensemble import Ensemble, choose, member
from passagent.models.retry import Metered, Retrying
from passagent.models.types import Reply
from passagent.search.episode_context import judged_node
from passagent.search.session import EXPERT, Session, Stopping
from passagent.search.stop import Want
from passagent.store import SEEDS, Episode, Node, episodes, hint_uses, ledger, nodes
from passagent.store.redaction import redact

log = logging.getLogger("passagent.search")


def writer_of(session: Session, episode: Episode) -> Model:
    """The model that writes the episode, once it is chosen."""
    if episode.island == SEEDS:
        return open_model(session.config.model.of(ModelChoice(name=EXPERT)))
    return member(session.model, episode.model)


def choose_model(session: Session, episode: Episode) -> str:
    """The name of the model that writes the episode: of an ensemble, by its weights."""
    if episode.island == SEEDS:
        return EXPERT
    if not isinstance(session.model, Ensemble):
        return session.model.name
    return choose(session.model.weights, episode.seed)


def metered(session: Session, episode: Episode, model: Model, role: str = "agent") -> Metered:
    """`model` with each of its calls for the episode counted in the ledger and the budgets."""

    async def admit(tokens: int, cost: float | None) -> Callable[[], None]:
        is_timed = session.limits.max_time_s is not None
        seconds = ledger.mean_latency_s(session.store, session.run.id, inner.name) if is_timed else 0.0
        return await session.admit(Want(tokens=tokens, cost=cost, seconds=seconds))

    inner, retries = (model.inner, model.max_retries) if isinstance(model, Retrying) else (model, 0)
    who = "seeds" if episode.island == SEEDS else f"island {episode.island}"
    return Metered(
        inner,
        retries,
        store=session.store,
        episode=episode,
        price=session.prices.get(inner.name),
        admit=admit,
        tell=lambda line: session.events.note(redact(f"{who}: {line}")),
        pause=lambda seconds: session.in_time(asyncio.sleep(seconds)),
        role=role,
    )


async def distil(session: Session, island: int) -> None:
    """Ask about the island's episodes that ended with progress and were not asked about yet.

    Raises what the model raises, and Stopping as Session.admit does.
    """
    if session.distiller is None:
        return
    for episode_id in hint_uses.undistilled(session.store, session.run.id, island):
        await _ask_distiller(session, session.distiller, episodes.get_episode(session.store, episode_id))


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
    session.is_ending = True
    try:
        for island in range(session.run.islands):
            await distil(session, island)
    except Stopping as stopping:
        log.info("not all progress is distilled: %s", stopping)


async def _ask_distiller(session: Session, distiller_model: Model, episode: Episode) -> None:
    store, run, best = session.store, session.run, _best(session, episode)
    assert best is not None and session.memory is not None
    task_hashes = session.memory.marks
    model = metered(session, episode, distiller_model, distiller.ROLE)
    parent = None if episode.parent_id is None else nodes.get_node(store, episode.parent_id)
    improvement = Improvement(
        task=session.task,
        target=kind_of(run.device),
        before=judged_node(store, parent) if parent else None,
        after=judged_node(store, best),
    )

    def save(reply: Reply, hint: LearnedHint | None) -> None:
        written = hint.model_dump() if hint else None
        with store.transaction():
            model.settle(reply.usage, reply.stop_reason)
            hint_uses.settle_distilled(store, episode.id, written, best.id, model.name, task_hashes)
        session.events.look()

    await distiller.ask(model, improvement, save)


def _best(session: Session, episode: Episode) -> Node | None:
    """The best correct node of an episode, also of one that goes on."""
    correct = nodes.correct_of_episode(session.store, episode.id)
    return max(correct, key=lambda node: (node.as_score or 0.0, -node.id), default=None)
