"""KernelBench's table of a benchmark: fast_p and the geometric mean against eager and against torch.compile.

A problem counts once: one that became several tasks is correct where all of them are, and its time is their
sum. fast_p is the share of problems that are correct and more than p times as fast (KernelBench, score.py);
fast_0 is the share of correct ones. A problem that the expert leaves to eager is correct, and as fast as it.
A speedup over torch.compile is the quotient of two over eager, each measured against eager in turns.
Intervals are over problems, as in summary.py.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from passagent.data.bench.results import Row
from passagent.data.bench.summary import Estimate, geometric, ratio, summaries_of
from passagent.errors import UsageError
from passagent.evaluator.compilers import is_compiled
from passagent.evaluator.result import GraphResult
from passagent.tasks import Task

SUITE = "kernelbench"
LEVELS_P = (0.0, 1.0, 1.2, 2.0)
"""The p of fast_p."""
ALL = "all"


class Place(NamedTuple):
    """Level and problem that a task comes from."""

    level: str
    problem: str


@dataclass(frozen=True)
class Line:
    """A compiler against another one, on the problems of a level on which both were measured."""

    compiler: str
    base: str
    level: str
    problems: int
    fast: dict[float, Estimate]
    """By p."""
    gmean: Estimate
    """Over the correct problems."""
    as_score: Estimate
    """Against eager, over the tasks."""
    light: Estimate
    """Geometric mean, over the correct problems, of the least time in which memory moves inputs and outputs
    over the measured time. FLOPs are not in it."""


def places_of(tasks: Iterable[Task]) -> dict[str, Place]:
    """Return level and problem of tasks by their keys. Raises UsageError for others' tasks."""
    places = {}
    for task in tasks:
        facts = task.subgraphs[0].facts
        origin = facts.get("origin", {})
        if origin.get("suite") != SUITE:
            raise UsageError(
                f"--suite {SUITE}: {task.path} was not imported from it; passagent tasks import {SUITE} PATH"
            )
        places[task.key] = Place(origin["file"].split("/")[-2], facts["group"])
    return places


def lines(
    places: dict[str, Place],
    rows: Sequence[Row],
    compilers: Sequence[str],
    bandwidth: Callable[[int], float] | None,
) -> list[Line]:
    """Make a line for every compiler against eager, and for what is no compiler of torch's against those
    that are.

    `places`: by a task's key. `bandwidth`: bytes/s for a call that moves so many bytes.
    """
    results = {name: _results(places, rows, name, bandwidth) for name in compilers if name != "eager"}
    levels = sorted({place.level for place in places.values()})
    levels += [ALL] if len(levels) > 1 else []
    table = []
    for compiler, measured in results.items():
        bases = [] if is_compiled(compiler) else filter(is_compiled, results)
        for base, level in itertools.product(["eager", *bases], levels):
            inside = {key: place.problem for key, place in places.items() if level in (ALL, place.level)}
            # a problem that the base is wrong on has no time to be compared with
            base_speeds = (
                dict.fromkeys(measured, 1.0)
                if base == "eager"
                else {problem: speedup for problem, (speedup, _) in results[base].items() if speedup}
            )
            problems = sorted(set(inside.values()) & measured.keys() & base_speeds.keys())
            if not problems:
                continue
            speedups = [measured[problem][0] / base_speeds[problem] for problem in problems]
            ones = [1] * len(problems)
            summary = summaries_of([compiler], [row for row in rows if row.task_key in inside])[0]
            table.append(
                Line(
                    compiler=compiler,
                    base=base,
                    level=level,
                    problems=len(problems),
                    fast={
                        limit: ratio([speedup > limit for speedup in speedups], ones) for limit in LEVELS_P
                    },
                    gmean=_gmean(speedups),
                    as_score=summary.as_score,
                    light=_gmean([measured[problem][1] for problem in problems]),
                )
            )
    return table


def _gmean(values: Sequence[float]) -> Estimate:
    """Return the geometric mean over the problems that have a value above 0."""
    return geometric([math.log(value) if value else 0.0 for value in values], [value > 0 for value in values])


def _results(
    places: dict[str, Place],
    rows: Sequence[Row],
    compiler: str,
    bandwidth: Callable[[int], float] | None,
) -> dict[str, tuple[float, float]]:
    """Return each problem's speedup over eager and its share of the bandwidth; 0 where it is wrong.

    Problems of which a task could not be measured are left out.
    """
    graphs: dict[str, list[GraphResult]] = {}
    lost = set()
    for row in rows:
        if row.compiler == compiler and row.task_key in places:
            problem = places[row.task_key].problem
            if row.evaluation is None or row.error is not None:
                lost.add(problem)
            else:
                graphs.setdefault(problem, []).extend(row.evaluation.graphs)
    results = {}
    for problem in graphs.keys() - lost:
        timed = [
            (g, g.eager_ms, g.speedup.e2e) for g in graphs[problem] if g.speedup and g.eager_ms is not None
        ]
        is_right = len(timed) == len(graphs[problem]) and all(graph.status == "ok" for graph, *_ in timed)
        eager = math.fsum(eager_ms for _, eager_ms, _ in timed)
        compiled = math.fsum(eager_ms / speedup for _, eager_ms, speedup in timed)
        moved = [graph.moved_bytes for graph, *_ in timed]
        least = math.fsum(1e3 * size / bandwidth(size) for size in moved) if bandwidth else 0.0
        results[problem] = (eager / compiled, least / compiled) if is_right else (0.0, 0.0)
    return results
