"""Charts as data, which the page draws with uPlot and `report` and `bench` with matplotlib (pictures.py).

The course of a run is its candidates in the order they were made, thinned to what a chart can show.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from passagent.store.database import Store

if TYPE_CHECKING:
    from passagent.data.bench.results import Row
    from passagent.data.bench.summary import Estimate, Summary

POINTS = 500
"""A chart is divided into so many parts; of the candidates in each the best and the worst are shown."""
_LEVELS = 48
"""Places at which a violin's density is taken."""


class Made(NamedTuple):
    """A node, as far as charts and the tree show it."""

    id: int
    parent: int | None
    island: int
    status: str
    """The status of its evaluation; before that its state."""
    as_score: float | None
    is_repeat: bool


class Point(NamedTuple):
    """A correct candidate."""

    place: int
    """1, 2, ... among all nodes of the run."""
    node: int
    island: int
    as_score: float


@dataclass
class Course:
    """The candidates of a run, in order."""

    nodes: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    """How many nodes have each status."""
    newest: dict[str, int] = field(default_factory=dict)
    """The newest node of each status."""
    points: list[Point] = field(default_factory=list)
    """Correct candidates, thinned."""
    best: list[Point] = field(default_factory=list)
    """Each better than all before it."""
    by_island: dict[int, list[Point]] = field(default_factory=dict)
    """Points of each island that are better than all before them."""


def made(store: Store, run_id: str) -> list[Made]:
    """Read all nodes of a run, in the order they were made."""
    _, rows = store.columns(
        "SELECT id, parent_id, island, coalesce(status, state), as_score, repeat_of IS NOT NULL FROM nodes "
        "WHERE run_id = :run ORDER BY id",
        {"run": run_id},
    )
    return [Made._make(row) for row in rows]


def course(nodes: Sequence[Made]) -> Course:
    """Return the course that these nodes are."""
    result = Course(len(nodes), Counter(node[3] for node in nodes))
    worst_and_best: dict[int, tuple[Point, Point]] = {}
    best, best_of_island = 0.0, dict[int, float]()
    for place, (number, _, island, status, score, is_repeat) in enumerate(nodes, 1):
        result.newest[status] = number
        if status != "ok" or score is None or is_repeat:
            continue
        part, point = place * POINTS // (len(nodes) + 1), Point(place, number, island, score)
        low, high = worst_and_best.get(part, (point, point))
        worst_and_best[part] = (
            point if score < low.as_score else low,
            point if score > high.as_score else high,
        )
        if score > best:
            best = score
            result.best.append(point)
        if score > best_of_island.get(island, 0.0):
            best_of_island[island] = score
            result.by_island.setdefault(island, []).append(point)
    result.points = [point for pair in worst_and_best.values() for point in sorted(set(pair))]
    return result


def best_at(record: Iterable[Point], places: Iterable[int]) -> list[float | None]:
    """Return the best AS at each of the ascending `places`; None before the first."""
    rest, value, values = list(reversed(list(record))), None, []
    for place in places:
        while rest and rest[-1].place <= place:
            value = rest.pop().as_score
        values.append(value)
    return values


def best_so_far(course: Course, again: dict[str, Any] | None) -> dict[str, Any]:
    """Chart the correct candidates and the best so far; `again`: `low` and `high` of the winner's AS."""
    places = sorted({1, course.nodes, *(point.place for point in (*course.points, *course.best))})
    by_place = {point.place: point for point in (*course.points, *course.best)}
    points = [by_place.get(place) for place in places]
    lines = []
    if again and again["low"] is not None:
        for key, label in (("low", "winner, low"), ("high", "winner, high (95%)")):
            lines.append(_line(label, _at_ends(places, again[key]), "bound", 2))
    lines.append(_line("candidate", [point and point.as_score for point in points], "points", -1))
    lines.append(_line("best so far", best_at(course.best, places), "step", 0))
    return _of_candidates(places, lines) | {"nodes": [point and point.node for point in points]}


def by_island(course: Course, roles: dict[int, str]) -> dict[str, Any]:
    """Chart the best so far of each island."""
    places = sorted({1, course.nodes, *(p.place for record in course.by_island.values() for p in record)})
    lines = [
        _line(roles.get(island, "seeds"), best_at(record, places), "step", island)
        for island, record in sorted(course.by_island.items())
    ]
    return _of_candidates(places, lines)


def side_by_side(courses: Sequence[tuple[str, Course]]) -> dict[str, Any]:
    """Chart the best so far of several runs."""
    ends = {course.nodes for _, course in courses}
    places = sorted({1, *ends, *(point.place for _, course in courses for point in course.best)})
    lines = []
    for name, course in courses:
        values = best_at(course.best, [place for place in places if place <= course.nodes])
        lines.append(_line(name, values + [None] * (len(places) - len(values)), "step"))
    return _of_candidates(places, lines)


def _of_candidates(places: list[int], lines: list[dict[str, Any]]) -> dict[str, Any]:
    lines = [*lines, _line("eager = 1", _at_ends(places, 1.0), "eager", -1)]
    return {"x": places, "xlabel": "candidates", "ylabel": "AS, eager = 1", "log": True, "lines": lines}


def spending(store: Store, run_id: str) -> dict[str, Any] | None:
    """Chart tokens and money of a run's model calls over time, thinned; None where nothing was spent."""
    _, rows = store.columns(
        "SELECT finished_at, input_tokens + output_tokens, coalesce(cost, 0) FROM calls "
        "WHERE run_id = :run AND finished_at IS NOT NULL ORDER BY finished_at",
        {"run": run_id},
    )
    times, tokens, costs = list[float](), list[int](), list[float]()
    step, total, cost = max(1, len(rows) // POINTS), 0, 0.0
    for number, (at, more_tokens, more_cost) in enumerate(rows, 1):
        total, cost = total + more_tokens, cost + more_cost
        if number % step == 0 or number == len(rows):
            times.append(datetime.fromisoformat(at).timestamp())
            tokens.append(total)
            costs.append(cost)
    if not total:
        return None
    lines = [_line("tokens", tokens, "step")]
    if cost:
        lines.append(_line("USD", costs, "step") | {"scale": "money"})
    return {"x": times, "time": True, "ylabel": "tokens", "lines": lines}


def tolerance(summaries: Sequence[Summary], curve: str, symbol: str) -> dict[str, Any]:
    """Chart ES(t) or S(t) of each compiler with its 95% interval (PassNet 3.5, GraphNet Figure 2)."""
    curves: list[dict[int, Estimate]] = [getattr(summary, curve) for summary in summaries]
    levels = list(curves[0])
    lines = []
    for summary, estimates in zip(summaries, curves, strict=True):
        line = _line(summary.compiler, [estimates[t].value for t in levels], "line")
        line |= {"low": [estimates[t].low for t in levels], "high": [estimates[t].high for t in levels]}
        lines.append(line)
    lines.append(_line("eager = 1", _at_ends(levels, 1.0), "eager", -1))
    return {"x": levels, "xlabel": "tolerance level t", "ylabel": f"{symbol}, eager = 1", "lines": lines}


def _line(label: str, values: list[Any], kind: str, hue: int | None = None) -> dict[str, Any]:
    """Return a line of a chart; `hue`: which of the colours; -1: grey, None: the line's own number."""
    return {"label": label, "values": values, "kind": kind} | ({} if hue is None else {"hue": hue})


def _at_ends(places: list[int], value: float) -> list[float | None]:
    return [value if place in (places[0], places[-1]) else None for place in places]


def violins(compilers: Sequence[str], rows: Sequence[Row]) -> dict[str, Any] | None:
    """Chart the densities of log2 of the speedups, by compiler and dtype; None where nothing is correct.

    The speedups are of the subgraphs that are correct at t = 1 (GraphNet, Figure 6).
    """
    import numpy as np

    groups = [
        (f"{compiler} {dtype}", values)
        for compiler in compilers
        for dtype, values in sorted(_log2_by_dtype(compiler, rows).items())
    ]
    if not groups:
        return None
    every = [value for _, values in groups for value in (*values, 0.0)]
    low, high = min(every) - 0.6, max(every) + 0.6
    levels = np.linspace(low, high, _LEVELS)
    shapes = []
    for name, values in groups:
        sample = np.array(values)
        density = np.zeros_like(levels)
        if sample.std() > 0:
            width = 1.06 * sample.std() * len(values) ** -0.2  # Silverman's rule
            density = np.exp(-0.5 * ((levels[:, None] - sample[None, :]) / width) ** 2).sum(axis=1)
            density /= density.max()
        quartiles = np.quantile(sample, [0.25, 0.5, 0.75]).tolist()
        half = list(zip(density.tolist(), levels.tolist(), strict=True))
        shapes.append({"name": name, "count": len(values), "half": half, "quartiles": quartiles})
    ticks = [t for t in range(math.floor(low), math.ceil(high) + 1) if low <= t <= high]
    return {"low": low, "high": high, "ticks": ticks, "shapes": shapes}


def _log2_by_dtype(compiler: str, rows: Sequence[Row]) -> dict[str, list[float]]:
    from passagent.evaluator.judging.verdict import graph_score

    by_dtype: dict[str, list[float]] = {}
    graphs = (g for row in rows if row.compiler == compiler and row.evaluation for g in row.evaluation.graphs)
    for graph in graphs:
        if graph.speedup is not None and graph_score(graph).correct(1):
            by_dtype.setdefault(graph.dtype, []).append(math.log2(graph.speedup.e2e))
    return by_dtype
