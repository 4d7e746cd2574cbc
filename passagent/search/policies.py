"""Policies: where an episode starts (KernelEvolve 3.1), and what migrates to its island."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import dataclass, field
from typing import Any

from passagent import extend
from passagent.config import SearchConfig
from passagent.evaluator.result import GRAVITY
from passagent.search.islands import MIN_GAIN, IslandView, is_draft, is_first
from passagent.store import SEEDS, Episode, Node, Run, Store, nodes, runs


def policy_of(config: SearchConfig) -> extend.Policy:
    """The policy that a configuration names. Raises UsageError for a dotted path that does not load."""
    match config.policy:
        case "greedy":
            return Greedy()
        case "mcts":
            return Mcts()
        case "random":
            return AtRandom()
        case "best_of_n":
            return Anew()
        case "evolutionary":
            return Evolutionary(config.elites, config.explore)
        case path:
            policy: extend.Policy = extend.make(path, "search.policy", config)
            return policy


class Greedy:
    """The island's best correct node, else the failure that is nearest to one."""

    scope = "islands"

    def select(self, view: IslandView, rng: random.Random) -> Node | None:
        """Select a parent, as extend.Policy says."""
        return view.best() or view.to_mend()


@dataclass(frozen=True)
class Evolutionary:
    """The best of `tournament` draws from the island's `elites`; with chance `explore` the task itself."""

    elites: int
    explore: float
    tournament: int = 2

    scope = "islands"

    def select(self, view: IslandView, rng: random.Random) -> Node | None:
        """Select a parent, as extend.Policy says."""
        if rng.random() < self.explore:
            return None
        elites = view.elites(self.elites)
        if not elites:
            return view.to_mend()
        return max((rng.choice(elites) for _ in range(self.tournament)), key=lambda node: node.rank)


class AtRandom:
    """Any node of a seed or an earlier episode of the island, good or bad; the task counts as one."""

    scope = "alone"

    def select(self, view: IslandView, rng: random.Random) -> Node | None:
        """Select a parent, as extend.Policy says."""
        rows = view.store.rows(
            "SELECT id FROM episodes WHERE run_id = :run AND island IN (:island, :seeds) AND state = 'done' "
            "ORDER BY number",
            {"run": view.run_id, "island": view.island, "seeds": SEEDS},
        )
        drawn = rng.randrange(1 + len(rows))
        if drawn == 0:
            return None
        episode_nodes = nodes.of_episode(view.store, rows[drawn - 1]["id"])
        return rng.choice(episode_nodes) if episode_nodes else None


class Anew:
    """Best of N: every episode starts from the task and knows of no other."""

    scope = "alone"

    def select(self, view: IslandView, rng: random.Random) -> Node | None:
        """Select no parent, as extend.Policy allows."""
        return None


MAX_CHILDREN = 24
"""The most children of a place, however often it was visited."""
FAILED, WORST, BEST = 0.0, 0.5, 1.0
"""Values of a failure, and of the correct candidates with the smallest and the largest AS in the tree;
between them a value is linear in ln(AS)."""


@dataclass
class Place:
    """The task, or what an episode is remembered by: its best candidate, else its least grave failure."""

    node_id: int | None = None
    """None: the task."""
    number: int = 0
    """The episode's number."""
    above: Place | None = None
    children: list[Place] = field(default_factory=list)
    visits: int = 0
    """Episodes at and below it."""
    correct: int = 0
    """The visits that left a correct candidate; `sum_log_as` adds up the ln(AS) of these."""
    sum_log_as: float = 0.0

    def count(self, log_as: float | None) -> None:
        """Count an episode here and at all places above; `log_as`: None if it left nothing correct."""
        place: Place | None = self
        while place is not None:
            place.visits += 1
            place.correct += log_as is not None
            place.sum_log_as += log_as or 0.0
            place = place.above


@dataclass(frozen=True)
class Tree:
    """The places of an island, below its task."""

    root: Place
    low: float
    """The smallest ln(AS) of a correct place; 0 without one."""
    high: float

    def value(self, place: Place) -> float:
        """The mean value of the episodes at and below a place, 0 to 1."""
        if not place.correct:
            return FAILED
        span = self.high - self.low
        share = (place.sum_log_as - place.correct * self.low) / span if span > 0 else float(place.correct)
        return (WORST * place.correct + (BEST - WORST) * share) / place.visits


def read_tree(store: Store, run_id: str, island: int) -> Tree:
    """The tree of the island's finished episodes.

    What started from a node that is not of the island (a seed, a migrant) hangs below the task.
    """
    root, logs = Place(), list[float]()
    places: dict[int | None, Place] = {None: root}
    rows = store.rows(
        "SELECT episodes.number, episodes.parent_id, nodes.id, nodes.status, nodes.as_score, nodes.place "
        "FROM episodes LEFT JOIN nodes ON nodes.episode_id = episodes.id AND nodes.state = 'done' "
        "WHERE episodes.run_id = :run AND episodes.island = :island AND episodes.state = 'done' "
        "ORDER BY episodes.number",
        {"run": run_id, "island": island},
    )
    for number, episode_rows in itertools.groupby(rows, key=lambda row: row["number"]):
        best = min(episode_rows, key=_rank)
        place = places.get(best["parent_id"], root)
        log_as = None
        if best["status"] == "ok":  # what was not timed counts as fast as eager
            log_as = math.log(best["as_score"]) if best["as_score"] else 0.0
            logs.append(log_as)
        if best["id"] is not None:
            child = places[best["id"]] = Place(best["id"], number, place)
            place.children.append(child)
            place = child
        place.count(log_as)
    return Tree(root, min(logs, default=0.0), max(logs, default=0.0))


def _rank(row: dict[str, Any]) -> tuple[float, ...]:
    """Rank a candidate within its episode: the smallest stands for the episode."""
    if row["id"] is None:  # it left none
        return (0,)
    if row["status"] == "ok":
        return (0, -(row["as_score"] or 0.0), row["place"])
    return (1, GRAVITY.index(row["status"]), row["place"])


@dataclass(frozen=True)
class Mcts:
    """Monte Carlo tree search: UCT over an island's episodes (Kocsis and Szepesvari 2006; KernelEvolve 3.1).

    `exploration` is c: the child with the largest mean value + c sqrt(ln(parent's visits) / visits) is taken.
    An episode is a visit: it is counted where it started and at all places above. Progressive widening
    (Coulom 2007; Chaslot et al. 2008): a place that was visited N times has at most N^widening children. The
    tree is computed from the stored rows at each choice: the same seed and replies give the same tree.
    """

    exploration: float = 0.5
    widening: float = 0.4

    scope = "islands"

    def select(self, view: IslandView, rng: random.Random) -> Node | None:
        """Select a parent, as extend.Policy says."""
        tree = read_tree(view.store, view.run_id, view.island)
        here = tree.root
        # a place with room for another child is where to start from
        while here.children and len(here.children) >= self._room(here):
            bonus = self.exploration * math.sqrt(math.log(here.visits))
            here = max(
                here.children,
                key=lambda child: (tree.value(child) + bonus / math.sqrt(child.visits), -child.number),
            )
        return None if here.node_id is None else nodes.get_node(view.store, here.node_id)

    def _room(self, place: Place) -> int:
        return min(MAX_CHILDREN, math.floor(max(place.visits, 1) ** self.widening))


def choose_parent(
    store: Store, run: Run, config: SearchConfig, episode: Episode
) -> tuple[Node | None, str | None]:
    """The parent (None: the task itself) and, where it comes from another island, why."""
    if is_draft(config, episode.number):
        return None, None
    rng, is_seed = random.Random(f"parent:{episode.seed}"), episode.island == SEEDS
    if is_seed or is_first(config.drafts, run.islands, episode.number):
        seed = Greedy().select(IslandView(store, run.id, SEEDS), rng)
        if is_seed or seed:
            return seed, None
    policy = policy_of(config)
    stagnant = runs.get_island(store, run.id, episode.island).stagnant
    if policy.scope == "islands" and stagnant >= config.stagnation:
        migrant = choose_migrant(store, run, episode.island, episode.number)
        if migrant is not None:
            return migrant
    return policy.select(IslandView(store, run.id, episode.island), rng), None


def choose_migrant(store: Store, run: Run, island: int, number: int) -> tuple[Node, str] | None:
    """The best elite of the other islands, if it beats all that the island has before episode `number`.

    With the reason for people: it migrates on stagnation (Kernel Foundry 3.3.1).
    """
    here = IslandView(store, run.id, island).best_before(number)
    others = [
        node
        for other in runs.islands(store, run.id)
        if other.island != island
        for node in nodes.best_of_island(store, run.id, other.island, 1)
    ]
    best = max(others, key=lambda node: node.rank, default=None)
    if best is None or (here is not None and best.fitness <= here):
        return None
    if any(node.id == best.id for node in nodes.migrants(store, run.id, island)):
        return None
    islands = runs.islands(store, run.id)
    to, source = islands[island], islands[best.island]
    return (
        best,
        f"island {island} ({to.role}) had {to.stagnant} episodes without a gain of {MIN_GAIN:.0%} and has "
        f"{'nothing correct' if here is None else _as(here)}; "
        f"island {best.island} ({source.role}) has {_as(best.fitness)}",
    )


def _as(score: float) -> str:
    return "a correct pass that was not timed" if score == nodes.UNTIMED else f"AS {score:.3f}"
