"""When an episode may choose its parent and its model: once what it looks at can no longer change."""

from __future__ import annotations

from passagent.config import SearchConfig
from passagent.models.ensemble import Ensemble
from passagent.models.types import Model
from passagent.search.drafts import is_draft
from passagent.search.policies import policy_of
from passagent.search.rounds import Position
from passagent.store import Store, episodes, runs
from passagent.store.episodes import Episode
from passagent.store.runs import SEEDS, Run


def is_ready(store: Store, run: Run, config: SearchConfig, model: Model, episode: Episode) -> bool:
    """Whether all islands have come as far as the choices of `episode` look back.

    A migrant is looked for (when the island stagnates) in the rounds up to the last but one, so that no
    island waits for those that are still in the last: a device that all share would idle. By these rounds
    the model of an ensemble is chosen, too, and a place in the shared tree; that also needs to know where the
    episodes of the last round began.
    """
    if episode.island == SEEDS:
        return True
    before = Position(episode.number, run.islands).round
    scope = None if is_draft(config, episode.number) else policy_of(config).scope
    islands = runs.islands(store, run.id)
    resting = sum(other.rests_from is not None for other in islands)
    if scope == "tree" and before:
        last = before * run.islands
        if episodes.begun(store, run.id, last - run.islands + 1, last) < run.islands - resting:
            return False
    looks_back = (
        isinstance(model, Ensemble)
        or scope == "tree"
        or (scope == "islands" and islands[episode.island].stagnant >= config.stagnation)
    )
    return not looks_back or all(
        other.episodes >= before - 1 or other.rests_from is not None for other in islands
    )
