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
from passagent.store.runs import SEEDS

log = logging.getLogger("passagent.search")


async def seed(session: Session) -> None:
    """Return when the run has its seeds.

    Raises what the evaluator raises. A stop is left to the islands, who notice it, too.
    """
    wanted = 0 if EXPERT in model_names(session.model) else session.config.search.expert_seeds
    try:
        while session.check().wanted != "stop_after_episodes":
            episode = episodes.next_episode(session.store, session.run, SEEDS, wanted)
            if episode is None:
                return
            await _make(session, episode)
    except Stopping as stopping:
        log.info("no more seeds: %s", stopping)


async def _make(session: Session, episode: Episode) -> Episode:
    """A seed's episode at its end: the expert's conversation, or the verdict on what was planted."""
    store = session.store
    node = next((one for one in nodes.of_episode(store, episode.id) if one.call_id == planting.CALL), None)
    if node is None:
        return await run_claimed(session, episode)
    if node.state != "done":
        is_begun = nodes.start(store, node.id)
        await judge(session, node, Candidate(nodes.get_files(store, node)), is_begun)
    return conclude(session, episode, None, planting.CALL)
