"""Charts as data, and where their parts are in a picture: the page, `report` and `bench` draw the same SVG.

The course of a run is its candidates in the order they were made, thinned to what a chart can show.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from passagent.store.database import Store

if TYPE_CHECKING:
    from passagent.data.bench.summary import Estimate, Summary

POINTS = 500
"""A chart is divided into so many parts; of the candidates in each the best and the worst are shown."""


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


def read_nodes(store: Store, run_id: str) -> list[Made]:
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


@dataclass(frozen=True)
class Line:
    """A line of a chart."""

    label: str
    points: Sequence[tuple[float, float]]
    hue: int
    """The number of one of eight colours; GREY: none of them."""
    kind: Literal["step", "line", "points", "dashed"] = "step"
    band: Sequence[tuple[float, float, float]] = ()
    """x, low and high of an interval around the line."""
    nodes: Sequence[int] = ()
    """The node of each point."""


GREY = 8


@dataclass(frozen=True)
class Chart:
    """Lines over one pair of axes; eager is the dashed line at AS 1."""

    xlabel: str
    ylabel: str
    lines: list[Line]
    is_log: bool = False


def best_so_far(course: Course, again: dict[str, Any] | None) -> Chart:
    """Chart the correct candidates and the best so far; `again`: `low` and `high` of the winner's AS."""
    places = [(float(point.place), point.as_score) for point in course.points]
    lines = [
        Line("candidate", places, GREY, "points", nodes=[point.node for point in course.points]),
        _record("best so far", course.best, 0, course.nodes),
    ]
    if again and again["low"] is not None:
        ends = (1.0, float(course.nodes))
        middle, band = [(x, again["value"]) for x in ends], [(x, again["low"], again["high"]) for x in ends]
        lines.append(Line("winner (95%)", middle, 2, "dashed", band))
    return _of_candidates(course.nodes, lines)


def by_island(course: Course, roles: dict[int, str]) -> Chart:
    """Chart the best so far of each island."""
    lines = [
        _record(roles.get(island, "seeds"), record, island % 8, course.nodes)
        for island, record in sorted(course.by_island.items())
    ]
    return _of_candidates(course.nodes, lines)


def _record(label: str, record: Sequence[Point], hue: int, nodes: int) -> Line:
    """Return the line of points that are each better than all before, up to the last of the nodes."""
    steps = [(float(point.place), point.as_score) for point in record]
    steps += [(float(nodes), steps[-1][1])] if steps else []
    return Line(label, steps, hue, nodes=[*(point.node for point in record), 0][: len(steps)])


def _of_candidates(nodes: int, lines: list[Line]) -> Chart:
    eager = Line("eager = 1", [(1.0, 1.0), (float(nodes), 1.0)], GREY, "dashed")
    return Chart("candidates", "AS, eager = 1", [*lines, eager], is_log=True)


def tolerance(summaries: Sequence[Summary], curve: str, symbol: str) -> Chart:
    """Chart ES(t) or S(t) of each compiler with its 95% interval (PassNet 3.5, GraphNet Figure 2)."""
    curves: list[dict[int, Estimate]] = [getattr(summary, curve) for summary in summaries]
    lines = []
    for hue, (summary, estimates) in enumerate(zip(summaries, curves, strict=True)):
        points = [(float(t), of.value) for t, of in estimates.items() if of.value is not None]
        ends = [(float(t), of.low, of.high) for t, of in estimates.items() if of.low and of.high]
        lines.append(Line(summary.compiler, points, hue % 8, "line", ends))
    levels = [float(t) for t in curves[0]]
    lines.append(Line("eager = 1", [(levels[0], 1.0), (levels[-1], 1.0)], GREY, "dashed"))
    return Chart("tolerance level t", f"{symbol}, eager = 1", lines)


WIDE, HIGH = 600.0, 250.0
"""Size of a chart's picture, without the names of its lines below it."""
_LEFT, _RIGHT, _TOP, _BOTTOM = 46.0, 590.0, 14.0, 210.0


def drawn(chart: Chart) -> dict[str, Any]:
    """Return where in the picture (templates/chart.svg) the chart's lines, points and ticks are."""
    every = [point for line in chart.lines for point in line.points if math.isfinite(point[1])]
    every += [(x, end) for line in chart.lines for x, *ends in line.band for end in ends]
    (left, right), (low, high) = ((min(values), max(values)) for values in zip(*every, strict=True))
    right = right if right > left else left + 1.0
    low, high = (low / 1.06, high * 1.06) if chart.is_log else (min(0.0, low), high * 1.05 or 1.0)
    scale = math.log if chart.is_log else float

    def across(x: float) -> float:
        return round(_LEFT + (x - left) / (right - left) * (_RIGHT - _LEFT), 1)

    def up(y: float) -> float:
        y = min(max(y, low), high)
        return round(_BOTTOM - (scale(y) - scale(low)) / (scale(high) - scale(low)) * (_BOTTOM - _TOP), 1)

    lines = []
    for line in chart.lines:
        places = [(across(x), up(y)) for x, y in line.points]
        step = [f"H{x}V{y}" if line.kind == "step" else f"L{x} {y}" for x, y in places[1:]]
        there = [f"{across(x)} {up(end)}" for x, _, end in line.band]
        back = [f"{across(x)} {up(end)}" for x, end, _ in reversed(line.band)]
        nodes = line.nodes or [0] * len(places)
        lines.append(
            {
                "line": line,
                "path": "".join([f"M{places[0][0]} {places[0][1]}", *step]) if places else "",
                "band": f"M{'L'.join([*there, *back])}Z" if line.band else "",
                "marks": [
                    {"x": x, "y": y, "node": node, "value": value}
                    for (x, y), (_, value), node in zip(places, line.points, nodes, strict=True)
                    if line.kind in ("points", "line") or node
                ],
            }
        )
    across_ticks = _ticks(left, right)
    whole = [tick for tick in across_ticks if tick.is_integer()]
    return {
        "chart": chart,
        "lines": lines,
        "xticks": [(across(tick), f"{tick:g}") for tick in (whole if len(whole) > 1 else across_ticks)],
        "yticks": [(up(tick), f"{tick:g}") for tick in _ticks(low, high, chart.is_log)],
    }


def _ticks(low: float, high: float, is_log: bool = False) -> list[float]:
    """Return about five round numbers between two; decades where they are far apart on a log axis."""
    if is_log and high / low > 8:
        decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        return [tick for k in decades for tick in (10.0**k, 3 * 10.0**k) if low <= tick <= high]
    unit = 10.0 ** math.floor(math.log10((high - low) / 4))
    step = next(unit * times for times in (1, 2, 5, 10) if (high - low) / (unit * times) <= 6)
    first, last = math.ceil(low / step), math.floor(high / step)
    return [float(f"{place * step:.6g}") for place in range(first, last + 1)]
