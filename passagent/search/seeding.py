"""Seeds: a planted one is judged and the built-in expert writes a few (Kernel Foundry 3.2.1 and 4.4).

All that is before a model's first episode, which starts from the best of them. They are nodes of episodes
like any other, numbered below 1, on an island of their own that all islands see. The expert's replies are a
function of its messages, so a run has the same seeds however often it is resumed.
"""

from __future__ import annotations

import logging

from passagent.evaluator.result import Candidate
from passagent.models.ensemble import model_names
from passagent.search import planting
from passagent.search.candidates import judge
from passagent.search.claimed import conclude, run_claimed
from passagent.search.session import Session, Stopping
from passagent.search.writers import EXPERT
from passagent.store import episodes, nodes
from passagent.store.episodes import Episode
from passagent.store.owner import named
from passagent.store.runs import SEEDS

log = logging.getLogger("passagent.search")


async def seed(session: Session) -> None:
    """Return when the run has its seeds, whichever process makes them.

    Raises what the evaluator raises. A stop is left to the islands, who notice it, too.
    """
    wanted = 0 if EXPERT in model_names(session.model) else session.config.search.expert_seeds
    try:
        while (episode := await _claim(session, wanted)) is not None:
            episode = await _made(session, episode)
            if episode.owner is not None:
                episodes.release(session.store, episode)
            session.notify()
    except Stopping as stopping:
        log.info("no more seeds: %s", stopping)


async def _claim(session: Session, wanted: int) -> Episode | None:
    """The next seed's episode, waited for while another process makes one; None: there are enough."""

    def why() -> str:
        owner = episodes.holder(session.store, session.run.id, SEEDS)
        return f"{named(owner)} makes the seeds" if owner else ""

    with session.waiting(why):
        while session.check().wanted != "stop_after_episodes":
            try:
                return episodes.claim(session.store, session.run, SEEDS, session.owner, seeds=wanted)
            except episodes.Held:
                await session.changed.wait()
    return None


async def _made(session: Session, episode: Episode) -> Episode:
    """A claimed seed's episode at its end: the expert's conversation, or the verdict on what was planted."""
    store = session.store
    node = next((one for one in nodes.of_episode(store, episode.id) if one.call_id == planting.CALL), None)
    if node is None:
        return await run_claimed(session, episode)
    if node.state != "done":
        is_begun = nodes.start(store, node.id, session.owner)
        await judge(session, node, Candidate(nodes.get_files(store, node)), is_begun)
    with store.transaction():
        episodes.check_held(store, episode.id, session.owner)
        return conclude(session, episode, None, planting.CALL)
