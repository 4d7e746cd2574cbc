"""The finalists' second measurements, side by side: the best of many noisy scores is a lucky one.

A series is planned as a whole, then measured row by row: in every round each finalist once, in random order;
it ends sooner where its first rounds tell the outcome. So a series that was cut off is gone on with, and
never mixed with another one.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from passagent.store.bests import best_of_island
from passagent.store.database import Store, now
from passagent.store.nodes import Node, get_node
from passagent.store.runs import SEEDS, islands


@dataclass(frozen=True)
class Confirmation:
    """A row of `confirmations`: one measurement of one finalist."""

    run_id: str
    series: int
    """Episodes that were finished when the series began, but for the one that led to it."""
    round: int
    """1, 2, ... in the series."""
    place: int
    """In the round's random order."""
    node_id: int
    evaluation_id: int | None
    """None: not measured yet."""
    status: str | None
    as_score: float | None
    measured_at: str | None
    held_all: int
    """1: the series holds every correct node that there was."""


def finalists(store: Store, run_id: str, limit: int) -> list[Node]:
    """The run's best correct and timed nodes with distinct sources, the best first."""
    return [node for node in best_of_run(store, run_id, limit) if node.as_score is not None][:limit]


def best_of_run(store: Store, run_id: str, limit: int) -> list[Node]:
    """The best correct nodes, at most `limit` of each population, with distinct sources, best first."""
    populations = [SEEDS, *(island.island for island in islands(store, run_id))]
    candidates = [node for number in populations for node in best_of_island(store, run_id, number, limit)]
    distinct: dict[str, Node] = {}
    for node in sorted(candidates, key=lambda node: (-(node.as_score or 0.0), node.number, node.place)):
        distinct.setdefault(node.canonical_key, node)
    return list(distinct.values())


def plan(store: Store, run_id: str, series: int, rounds: list[list[Node]], held_all: bool) -> bool:
    """Plan a series: in each round these nodes in this order. False if it was planned before.

    `held_all`: they are all correct nodes that there are.
    """
    with store.transaction():
        if series_rows(store, run_id, series):
            return False
        for number, order in enumerate(rounds, start=1):
            for place, node in enumerate(order, start=1):
                store.execute(
                    "INSERT INTO confirmations (run_id, series, round, place, node_id, held_all) "
                    "VALUES (:run, :series, :round, :place, :node, :all)",
                    {
                        "run": run_id,
                        "series": series,
                        "round": number,
                        "place": place,
                        "node": node.id,
                        "all": int(held_all),
                    },
                )
    return True


def series_rows(store: Store, run_id: str, series: int) -> list[Confirmation]:
    """The rows of a series in the order they are measured in."""
    rows = store.rows(
        "SELECT * FROM confirmations WHERE run_id = :run AND series = :series ORDER BY round, place",
        {"run": run_id, "series": series},
    )
    return [Confirmation(**row) for row in rows]


def measured(
    store: Store, row: Confirmation, evaluation_id: int, status: str, as_score: float | None
) -> None:
    """Store what a measurement of a series came to."""
    store.execute(
        "UPDATE confirmations SET evaluation_id = :evaluation, status = :status, as_score = :score, "
        "measured_at = :at WHERE run_id = :run AND series = :series AND round = :round AND node_id = :node "
        "AND evaluation_id IS NULL",
        {
            "evaluation": evaluation_id,
            "status": status,
            "score": as_score,
            "at": now(),
            "run": row.run_id,
            "series": row.series,
            "round": row.round,
            "node": row.node_id,
        },
    )


def count_measured(store: Store, run_id: str) -> int:
    """How many measurements the run's series came to."""
    row = store.row(
        "SELECT count(evaluation_id) AS n FROM confirmations WHERE run_id = :run", {"run": run_id}
    )
    return row["n"] if row else 0


def shorten(store: Store, run_id: str, series: int, rounds: int) -> None:
    """End a series after its first `rounds`: what is planned and not measured is dropped."""
    store.execute(
        "DELETE FROM confirmations WHERE run_id = :run AND series = :series AND round > :rounds "
        "AND evaluation_id IS NULL",
        {"run": run_id, "series": series, "rounds": rounds},
    )


def last_series(store: Store, run_id: str) -> list[Confirmation]:
    """The newest series that was measured to its end; empty if there is none."""
    newest = store.row(
        "SELECT max(series) AS series FROM (SELECT series FROM confirmations WHERE run_id = :run "
        "GROUP BY series HAVING count(evaluation_id) = count(*))",
        {"run": run_id},
    )
    return series_rows(store, run_id, newest["series"]) if newest and newest["series"] is not None else []


def scores(rows: Sequence[Confirmation]) -> dict[int, float | None]:
    """The AS of each finalist that was correct in every round: the geometric mean of its rounds.

    None for one that could not be timed; the best first.
    """
    by_node: dict[int, list[Confirmation]] = {}
    for row in rows:
        by_node.setdefault(row.node_id, []).append(row)
    mean_scores = {
        node_id: _mean([row.as_score for row in node_rows])
        for node_id, node_rows in by_node.items()
        if all(row.status == "ok" for row in node_rows)
    }
    return dict(sorted(mean_scores.items(), key=lambda item: -(item[1] or 0.0)))


def _mean(values: list[float | None]) -> float | None:
    numbers = [value for value in values if value]
    if len(numbers) < len(values):
        return None
    return math.exp(math.fsum(map(math.log, numbers)) / len(numbers))


def score_of(store: Store, node: Node) -> float | None:
    """The node's AS: as it was confirmed, if it was a finalist."""
    return scores(last_series(store, node.run_id)).get(node.id, node.as_score)


def winner(store: Store, run_id: str, by_model: bool = False) -> Node | None:
    """The best correct node: of the newest series, if one of its nodes was correct in every round.

    Else the best by its one measurement, of the nodes that the series did not hold. `by_model`: only of the
    run's model; seeds, which were there before its first reply, and copies of their programs do not count.
    """
    rows, seeds = last_series(store, run_id), set[str]()
    if by_model:
        names = {"run": run_id, "seeds": SEEDS}
        keys = store.rows("SELECT canonical_key FROM nodes WHERE run_id = :run AND island = :seeds", names)
        seeds = {row["canonical_key"] for row in keys}
    confirmed = (get_node(store, node_id) for node_id in scores(rows))
    best = next((node for node in confirmed if node.canonical_key not in seeds), None)
    return best or _best_beside(store, run_id, rows, seeds)


def found_since(store: Store, run_id: str) -> Node | None:
    """The best node found after the newest series, if its one measurement is above the winner's AS.

    Rank tells that it was found since, as no clock can be relied on: it would have been the first finalist.
    """
    rows = last_series(store, run_id)
    confirmed = scores(rows)
    node = _best_beside(store, run_id, rows)
    if not confirmed or node is None:
        return None
    above = [next(iter(confirmed.values())) or 0.0]
    if not rows[0].held_all:
        above += [get_node(store, row.node_id).as_score or 0.0 for row in rows]
    return node if (node.as_score or 0.0) > max(above) else None


def _best_beside(
    store: Store, run_id: str, rows: Sequence[Confirmation], without: Collection[str] = ()
) -> Node | None:
    """The best correct node, by its one measurement, not of the series `rows` nor a program `without`."""
    held = {row.node_id for row in rows}
    ranked = best_of_run(store, run_id, len(held) + len(without) + 1)
    return next((node for node in ranked if node.id not in held and node.canonical_key not in without), None)
