"""Charts as data: what page.js draws with uPlot, and violins, which are drawn here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from passagent.view.course import Course, Spent, best_at

if TYPE_CHECKING:
    from passagent.data.bench.summary import Estimate, Summary

_PARTS = 48
"""Places at which a violin's density is taken."""


def best_so_far(course: Course, again: dict[str, Any] | None) -> dict[str, Any]:
    """Correct candidates and the best so far, on a log axis; `again`: the winner's confirmed AS."""
    places = sorted({1, course.nodes, *(point.place for point in (*course.points, *course.best))})
    by_place = {point.place: point for point in (*course.points, *course.best)}
    found = [by_place.get(place) for place in places]
    lines = []
    if again and again["as_low"] is not None:
        for name, shown in (("as_low", "winner, low"), ("as_high", "winner, high (95%)")):
            values = [again[name] if place in (places[0], places[-1]) else None for place in places]
            lines.append(_line(shown, values, "bound", 2))
    lines.append(_line("candidate", [point and point.as_score for point in found], "points", -1))
    lines.append(_line("best so far", best_at(course.best, places), "step", 0))
    nodes = [point and point.node for point in found]
    return {"x": places, "xlabel": "candidates", "ylabel": "AS", "log": True, "lines": lines, "nodes": nodes}


def by_island(course: Course, roles: dict[int, str]) -> dict[str, Any]:
    """The best so far of each island."""
    places = sorted({1, course.nodes, *(point.place for own in course.by_island.values() for point in own)})
    lines = [
        _line(roles.get(island, "seeds"), best_at(own, places), "step", island)
        for island, own in sorted(course.by_island.items())
    ]
    return {"x": places, "xlabel": "candidates", "ylabel": "AS", "log": True, "lines": lines}


def side_by_side(runs: Sequence[tuple[str, Course]]) -> dict[str, Any]:
    """The best so far of several runs."""
    places = sorted({1, *(c.nodes for _, c in runs), *(p.place for _, course in runs for p in course.best)})
    lines = []
    for name, course in runs:
        values = best_at(course.best, [place for place in places if place <= course.nodes])
        lines.append(_line(name, values + [None] * (len(places) - len(values)), "step"))
    return {"x": places, "xlabel": "candidates", "ylabel": "AS", "log": True, "lines": lines}


def spending(spent: Sequence[Spent]) -> dict[str, Any] | None:
    """Tokens and money over time; None where nothing was spent."""
    if not spent or not spent[-1].tokens:
        return None
    lines = [_line("tokens", [one.tokens for one in spent], "step")]
    if spent[-1].cost:
        lines.append(_line("USD", [one.cost for one in spent], "step") | {"scale": "money"})
    return {"x": [one.at for one in spent], "time": True, "ylabel": "tokens", "lines": lines}


def tolerance(summaries: Sequence[Summary], curve: str, symbol: str) -> dict[str, Any]:
    """ES(t) or S(t) of each compiler with its 95% interval (PassNet 3.5, GraphNet Figure 2)."""
    curves: list[dict[int, Estimate]] = [getattr(summary, curve) for summary in summaries]
    levels = list(curves[0])
    lines = []
    for summary, own in zip(summaries, curves, strict=True):
        line = _line(summary.compiler, [own[t].value for t in levels], "line")
        line |= {"low": [own[t].low for t in levels], "high": [own[t].high for t in levels]}
        lines.append(line)
    return {"x": levels, "xlabel": "tolerance level t", "ylabel": f"{symbol}, eager = 1", "lines": lines}


def _line(label: str, values: list[Any], kind: str, hue: int | None = None) -> dict[str, Any]:
    """hue: which of the page's colours; -1: grey, None: the line's own number."""
    return {"label": label, "values": values, "kind": kind} | ({} if hue is None else {"hue": hue})


def violins(groups: Sequence[tuple[str, list[float]]]) -> dict[str, Any] | None:
    """The density of each group's values (log2 of speedups) as SVG paths; None where there are none."""
    import numpy as np

    known = [value for _, values in groups for value in values]
    if not known:
        return None
    low, high = min([*known, 0.0]) - 0.6, max([*known, 0.0]) + 0.6
    levels = np.linspace(low, high, _PARTS)
    shapes = []
    for name, values in groups:
        own = np.array(values)
        density = np.zeros_like(levels)
        if len(values) > 1 and own.std() > 0:
            width = 1.06 * own.std() * len(values) ** -0.2  # Silverman's rule
            density = np.exp(-0.5 * ((levels[:, None] - own[None, :]) / width) ** 2).sum(axis=1)
            density /= density.max()
        quartiles = [float(q) for q in np.quantile(own, [0.25, 0.5, 0.75])] if values else []
        half = [(float(d), float(y)) for d, y in zip(density, levels, strict=True)]
        shapes.append({"name": name, "count": len(values), "half": half, "quartiles": quartiles})
    ticks = [t for t in range(int(np.floor(low)), int(np.ceil(high)) + 1) if low <= t <= high]
    return {"low": low, "high": high, "ticks": ticks, "shapes": shapes}
