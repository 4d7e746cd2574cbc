"""Context memory in a search: when an island stagnates, a model writes a page that its later episodes see.

That a page is to be written is stored with the episode's end, so after a process that died in between the
next one asks. A reply and the page are stored together: no page is paid for twice.
"""

from __future__ import annotations

from dataclasses import asdict, replace

from passagent.agent.distiller import diff
from passagent.agent.summariser import ROLE, Artefacts, ask, may_summarise
from passagent.evaluator.target import kind_of
from passagent.models.meter import metered
from passagent.models.types import Model
from passagent.search.gathering import diagnosis_of
from passagent.search.intending import outcome
from passagent.search.relatives import attempt
from passagent.search.session import Session
from passagent.search.writers import meter_of, writer_of
from passagent.store import bests, context_memory, episodes, intents, ledger, nodes, runs
from passagent.store.episodes import Episode
from passagent.store.runs import SEEDS

NEWEST = 40
"""Candidates of an island that are summarised."""


def note_stagnation(session: Session, episode: Episode) -> None:
    """A page is wanted if the island stagnates with the end of `episode`: once, until it gains again.

    It is written before the island's next episode, so for the last one nobody is asked.
    """
    is_asked = session.summariser is not None or may_summarise(episode.model or "")
    if episode.island == SEEDS or not is_asked or not session.config.agent.context_budget.memory:
        return
    island = runs.get_island(session.store, session.run.id, episode.island)
    if island.stagnant == session.config.search.stagnation:
        context_memory.want(session.store, episode)


async def summarise(session: Session, island: int) -> None:
    """Write the island's pages that are wanted. Raises what the model raises, and Stopping."""
    store = session.store
    for episode_id in context_memory.wanted(store, session.run.id, island):
        episode = episodes.get_episode(store, episode_id)
        model: Model = session.summariser or writer_of(session, episode)
        meter = meter_of(session, replace(episode, model=model.name), ROLE)
        budget = session.config.agent.context_budget.memory
        reply, page = await ask(metered(model, meter), _artefacts(session, episode), budget)
        with store.transaction():
            meter.settle(reply.usage, reply.stop_reason)
            ledger.count(store, episode, asdict(reply.usage))
            context_memory.settle(store, episode, page)
        session.events.look()


def _artefacts(session: Session, episode: Episode) -> Artefacts:
    """What the island has left behind up to the end of `episode`."""
    store, run, island = session.store, session.run, episode.island
    later = replace(episode, number=episode.number + 1)
    newest = sorted(nodes.newest_before(store, later, NEWEST, NEWEST), key=lambda node: node.id)
    best = next(iter(bests.best_of_island(store, run.id, island, 1)), None)
    difference = ""
    if best is not None:
        parent = nodes.get_node(store, best.parent_id) if best.parent_id is not None else None
        before = nodes.get_files(store, parent) if parent else {}
        difference = diff(before, nodes.get_files(store, best))
    return Artefacts(
        operators=list(session.task.operators),
        target=kind_of(run.device),
        stagnant=session.config.search.stagnation,
        best_as=best.as_score if best else None,
        candidates=[(attempt(store, node, session.told), diagnosis_of(node).text) for node in newest],
        intents=[outcome(one) for one in intents.of_run(store, run.id) if one.island == island],
        difference=difference,
        page=context_memory.page_before(store, episode),
    )
