"""PassNet's Table 1 of what was measured, with intervals, and the curves ES(t) and S(t).

PassNet's caption of Table 1 defines fast_1 (share of subgraphs that are correct and at least as fast as
eager), the sample and subgraph correctness rates, and the geometric-mean speedup over the correct subgraphs.
ES(t) is the geometric mean of the rectified speedups over all N subgraphs (section 3.5, Eq. 3), AS the
weighted geometric mean of ES(t) over t (Eq. 4, Appendix E). Of a table, N counts the subgraphs of all its
tasks: a task weighs as much as it has subgraphs. S(t) is GraphNet's (Eq. 1; Proposition B.1): no error is
forgiven.

Each of these is a ratio of two sums over tasks, or exp of one. So the bootstrap is a weighted sum: tasks are
drawn with replacement (subgraphs of one task are alike), and the middle 95% of the redrawn tables is the
interval.

With shapes held out, who writes passes sees a part of a task's subgraphs, and all are measured: it is
AgentKernelArena's protocol for configurations that an author never saw. Each part has a line of its own.
"""

from __future__ import annotations

import functools
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from passagent.data.bench.results import Row
from passagent.evaluator import score
from passagent.evaluator.judging.verdict import graph_score
from passagent.evaluator.result import Evaluation, GraphResult

REDRAWN = 2000
"""Bootstrap samples."""
S_RANGE = range(-10, 1)
"""GraphNet 3.2.1: S(t) is of t <= 0."""


@dataclass(frozen=True)
class Estimate:
    """A figure and its 95% interval over tasks."""

    value: float | None
    """None where nothing is there to be averaged."""
    low: float | None = None
    """None with fewer than two tasks."""
    high: float | None = None


@dataclass(frozen=True)
class Summary:
    """One compiler's line of the table. Shares are from 0 to 1, speedups are eager / compiled, end to end."""

    compiler: str
    dispatch: str
    tasks: int
    """The number of measured tasks."""
    asked: int
    """The number of tasks that were to be measured."""
    subgraphs: int
    fast_1: Estimate
    sample_cr: Estimate
    """Share of tasks that are correct on every subgraph."""
    subgraph_cr: Estimate
    gmean_speedup: Estimate
    as_score: Estimate
    es: dict[int, Estimate]
    """ES(t) by t, from -10 to 4."""
    s: dict[int, Estimate]
    """S(t) by t, from -10 to 0."""


METRICS = ("fast_1", "sample_cr", "subgraph_cr", "gmean_speedup", "as_score")
"""Fields of Summary, in the order of PassNet's table."""


def summarise(compiler: str, evaluations: Sequence[Evaluation], asked: int) -> Summary:
    """Make the line of `compiler` from its tasks' evaluations, each of them scored (`es` is not None)."""
    scores = [[graph_score(graph) for graph in evaluation.graphs] for evaluation in evaluations]
    speedups = [_speedups(evaluation.graphs) for evaluation in evaluations]
    graphs, right = [len(of_task) for of_task in scores], [len(of_task) for of_task in speedups]

    def curve(t: int, forgiving: bool) -> list[float]:
        """Sum the logs of each task's rectified speedups at t; not `forgiving`: B for wrong ones (B.1)."""
        return [
            math.fsum(
                math.log(score.rectified(g, t) if forgiving or g.correct(t) else score.B) for g in of_task
            )
            for of_task in scores
        ]

    es = {t: curve(t, True) for t in score.T_RANGE}
    total = math.fsum(map(score.weight, score.T_RANGE))
    aggregated = np.sum([np.array(es[t]) * (score.weight(t) / total) for t in score.T_RANGE], axis=0)
    return Summary(
        compiler=compiler,
        dispatch=", ".join(sorted({evaluation.dispatch for evaluation in evaluations})),
        tasks=len(evaluations),
        asked=asked,
        subgraphs=sum(graphs),
        fast_1=ratio([sum(s >= 1 for s in of_task) for of_task in speedups], graphs),
        sample_cr=ratio([n == of for n, of in zip(right, graphs, strict=True)], [1] * len(graphs)),
        subgraph_cr=ratio(right, graphs),
        gmean_speedup=geometric([math.fsum(map(math.log, of_task)) for of_task in speedups], right),
        as_score=geometric(aggregated, graphs),
        es={t: geometric(logs, graphs) for t, logs in es.items()},
        s={t: geometric(curve(t, False), graphs) for t in S_RANGE},
    )


def summaries_of(compilers: Iterable[str], rows: Sequence[Row], broken: int = 0) -> list[Summary]:
    """Make a line for each compiler that has a result; `broken` tasks were asked for, too."""
    summaries = []
    for compiler in dict.fromkeys(compilers):
        of_compiler = [row for row in rows if row.compiler == compiler]
        parts = defaultdict[str, list[Evaluation]](list)
        for row in of_compiler:
            if row.evaluation is None or row.error is not None:
                continue
            parts[compiler].append(row.evaluation)
            for name in ("seen", "held-out") if row.hidden else ():
                is_hidden = name == "held-out"
                graphs = [g for g in row.evaluation.graphs if (g.name in row.hidden) == is_hidden]
                part = row.evaluation.model_copy(update={"graphs": graphs})
                parts[f"{compiler}, {name} shapes"].append(part)
        for name, evaluations in parts.items():
            count = broken + len(of_compiler) if name == compiler else len(evaluations)
            summaries.append(summarise(name, evaluations, count))
    return summaries


@functools.lru_cache(maxsize=2)
def _draws(tasks: int) -> NDArray[np.float64]:
    """Draw how often each task is in each redrawn table, (REDRAWN, tasks): alike for every compiler."""
    return np.random.default_rng(0).multinomial(tasks, [1 / tasks] * tasks, size=REDRAWN).astype(np.float64)


def ratio(terms: Sequence[float] | NDArray[np.float64], counts: Sequence[float]) -> Estimate:
    """Divide two sums over tasks, with the interval; redrawn tables without a count are left out."""
    above, below = np.array(terms, np.float64), np.array(counts, np.float64)
    if not below.sum():
        return Estimate(None)
    value = float(above.sum() / below.sum())
    if len(below) < 2:
        return Estimate(value)
    weights = _draws(len(below))
    under = weights @ below
    drawn = (weights @ above)[under > 0] / under[under > 0]
    low, high = np.quantile(drawn, [0.025, 0.975])
    return Estimate(value, float(low), float(high))


def geometric(logs: Sequence[float] | NDArray[np.float64], counts: Sequence[float]) -> Estimate:
    """Return exp of the ratio, and of its interval's ends."""
    log = ratio(logs, counts)
    return Estimate(*(None if v is None else math.exp(v) for v in (log.value, log.low, log.high)))


def _speedups(graphs: Iterable[GraphResult]) -> list[float]:
    """Return the end-to-end speedups of the correct subgraphs."""
    return [graph.speedup.e2e for graph in graphs if graph.status == "ok" and graph.speedup]
