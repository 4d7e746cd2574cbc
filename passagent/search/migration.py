"""Migration: an island that stagnates goes on from another island's elite (Kernel Foundry 3.3.1)."""

from __future__ import annotations

from dataclasses import dataclass

from passagent.config import SearchConfig
from passagent.search.islands import MIN_GAIN, fitness
from passagent.search.policies import policy_of
from passagent.store import Store, bests, nodes, runs
from passagent.store.nodes import Node
from passagent.store.runs import Run


@dataclass(frozen=True)
class Migration:
    """An elite and why it moves."""

    node: Node
    reason: str


def choose_migrant(store: Store, run: Run, island: int, number: int) -> Migration | None:
    """The best elite of the other islands, if it beats all that the island has before episode `number`."""
    here = bests.best_known(store, run.id, island, number)
    best = bests.best_of_others(store, run.id, island)
    if best is None or (here is not None and fitness(best) <= here):
        return None
    if bests.has_migrated(store, best, island):
        return None
    islands = runs.islands(store, run.id)
    to, source = islands[island], islands[best.island]
    return Migration(
        best,
        f"island {island} ({to.role}) had {to.stagnant} episodes without a gain of {MIN_GAIN:.0%} and has "
        f"{'nothing correct' if here is None else _as(here)}; "
        f"island {best.island} ({source.role}) has {_as(fitness(best))}",
    )


def _as(score: float) -> str:
    return "a correct pass that was not timed" if score == nodes.UNTIMED else f"AS {score:.3f}"


def why_none(store: Store, run: Run, config: SearchConfig) -> str:
    """The reason, for people, that a run has had no migration."""
    islands = runs.islands(store, run.id)
    if policy_of(config).scope == "alone":
        return f"no migration: {config.policy} is a control, without elites"
    if len(islands) < 2:
        return "no migration: there is one island"
    if not any(island.stagnant >= config.stagnation for island in islands):
        return f"no migration: no island went {config.stagnation} episodes without a gain"
    return "no migration: no stagnating island was behind another one when its next episode began"
