"""Migration: an island that stagnates goes on from another island's elite (Kernel Foundry 3.3.1)."""

from __future__ import annotations

from dataclasses import dataclass

from passagent.search.islandview import IslandView, fitness
from passagent.store import Store, migrations, nodes, runs
from passagent.store.nodes import Node
from passagent.store.runs import Run


@dataclass(frozen=True)
class Migration:
    """An elite and why it moves."""

    node: Node
    reason: str


def round_of(run: Run, number: int) -> int:
    """The round of episode `number`: how many episodes its island has had before it."""
    return (number - 1) // run.islands


def choose_migrant(store: Store, run: Run, island: int, number: int, min_gain: float) -> Migration | None:
    """The best elite that the other islands had before this round, if it beats all that the island has.

    All islands must have finished the rounds before that of episode `number`: then the choice does not depend
    on which of them is faster.
    """
    before = round_of(run, number) * run.islands + 1
    here = IslandView(store, run.id, island).best()
    elites = [
        node
        for other in range(run.islands)
        if other != island and (node := nodes.best_before(store, run.id, other, before)) is not None
    ]
    best = max(elites, key=lambda node: (fitness(node), -node.number, -node.id), default=None)
    if best is None or (here and fitness(best) <= fitness(here)):
        return None
    if migrations.has_migrated(store, best, island):
        return None
    to, source = (runs.islands(store, run.id)[number] for number in (island, best.island))
    return Migration(
        best,
        f"island {island} ({to.role}) had {to.stagnant} episodes without a gain of {min_gain:.0%} and has "
        f"{'nothing correct' if here is None else _as(here)}; "
        f"island {best.island} ({source.role}) has {_as(best)}",
    )


def _as(node: Node) -> str:
    return "a correct pass that was not timed" if node.as_score is None else f"AS {node.as_score:.3f}"


def why_none(store: Store, run: Run, stagnation: int) -> str:
    """The reason, for people, that a run has had no migration."""
    found = runs.islands(store, run.id)
    if len(found) < 2:
        return "no migration: there is one island"
    if not any(island.stagnant >= stagnation for island in found):
        return f"no migration: no island went {stagnation} episodes without a gain"
    return "no migration: no stagnating island was behind another one when its next episode began"
