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

`--explain` says where a compiler loses (Appendix G, Tables 7 and 8). A subgraph loses if it is correct and
slower than eager, end to end. If its kernels are no slower, the root cause is the cost of a call, of a small
graph or of a fast one; if they are, it is the kernels. That takes the time of the device, so on the CPU only
the size of the graph is known.
"""

from __future__ import annotations

import functools
import itertools
import math
import re
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from passagent.data.bench.results import Row
from passagent.evaluator import score
from passagent.evaluator.judging.verdict import graph_score
from passagent.evaluator.result import Evaluation, GraphResult
from passagent.tasks import Task

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


def summarise(
    compiler: str, evaluations: Sequence[Evaluation], asked: int, b: float = 0.1, p: float = 0.0
) -> Summary:
    """Make the line of `compiler` from its tasks' evaluations, each of them scored (`es` is not None)."""
    scores = [[graph_score(graph) for graph in evaluation.graphs] for evaluation in evaluations]
    speedups = [_speedups(evaluation.graphs) for evaluation in evaluations]
    graphs, right = [len(of_task) for of_task in scores], [len(of_task) for of_task in speedups]

    def curve(t: int, forgiving: bool) -> list[float]:
        """Sum the logs of each task's rectified speedups at t; not `forgiving`: b for wrong ones (B.1)."""
        return [
            math.fsum(
                math.log(score.rectified(g, t, b, p) if forgiving or g.correct(t) else b) for g in of_task
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
    protocol = rows[0].identity if rows else {}
    b, p = protocol.get("b", 0.1), protocol.get("p", 0.0)
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
            summaries.append(summarise(name, evaluations, count, b, p))
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


SMALL = 15
"""Operators below which a graph is small (PassNet, Table 8)."""
FAST_MS = 2.0
"""The longest time of eager on a fast graph (Table 8), ms."""
BOUNDS = (1.0, 1.2, 2.0)
"""Between the ranges of Table 7."""
CAUSES = (
    "small graph: cost of a call",
    "fast graph: cost of a call",
    "slower kernels",
    "other",
    "device time unknown",
)


@dataclass(frozen=True)
class Group:
    """Some subgraphs of a compiler."""

    name: str
    """The root cause, or the category."""
    subgraphs: int
    slower: int
    """The number of them that are slower than eager."""
    wrong: int
    """The number of them that are wrong, or without a result."""
    median: float | None
    """The median of the end-to-end speedups of the correct ones."""


@dataclass(frozen=True)
class Losses:
    """The losses of one compiler."""

    compiler: str
    is_kernel: bool
    """The ranges are of kernel speedups; else of those end to end, as no device time is known."""
    ranges: tuple[int, ...]
    """Correct subgraphs in each range between BOUNDS."""
    causes: list[Group]
    """The slower ones by their root cause."""
    categories: list[Group]
    """All of them by category."""


def losses(tasks: dict[str, Task], rows: Sequence[Row], compiler: str) -> Losses | None:
    """Count where a compiler loses; `tasks` by their keys. None without a timed subgraph."""
    by_category: dict[str, list[GraphResult]] = defaultdict(list)
    for row in rows:
        if row.compiler == compiler and row.error is None and row.evaluation is not None:
            by_category[category(tasks[row.task_key].operators)] += row.evaluation.graphs
    graphs = itertools.chain(*by_category.values())
    timed = [(graph, graph.speedup) for graph in graphs if graph.status == "ok" and graph.speedup]
    if not timed:
        return None
    kernels = [speedup.device for _, speedup in timed if speedup.device is not None]
    is_kernel = len(kernels) == len(timed)
    speeds = kernels if is_kernel else [speedup.e2e for _, speedup in timed]
    by_cause: dict[str, list[GraphResult]] = {name: [] for name in CAUSES}
    for graph, speedup in timed:
        if speedup.e2e < 1:
            by_cause[cause(graph)].append(graph)
    return Losses(
        compiler=compiler,
        is_kernel=is_kernel,
        ranges=tuple(
            sum(low <= speed < high for speed in speeds)
            for low, high in zip((0.0, *BOUNDS), (*BOUNDS, float("inf")), strict=True)
        ),
        causes=[_group(name, slower) for name, slower in by_cause.items() if slower],
        categories=[_group(name, by_category[name]) for name in sorted(by_category)],
    )


def cause(graph: GraphResult) -> str:
    """Return why a subgraph is slower than eager (PassNet, Table 8)."""
    assert graph.speedup is not None
    if graph.speedup.device is None:
        return "small graph: cost of a call" if graph.nodes_before < SMALL else "device time unknown"
    if graph.speedup.device < 1:
        return "slower kernels"
    if graph.nodes_before < SMALL:
        return "small graph: cost of a call"
    return "fast graph: cost of a call" if (graph.eager_ms or 0.0) < FAST_MS else "other"


_CATEGORIES = {
    "convolution": "conv",
    "attention": "scaled_dot_product|attention",
    "recurrent": "lstm|gru|^rnn$",
    "matrix product": "matmul|linear|bmm|^mm$|einsum|addmm",
    "norm": "norm",
    "softmax": "softmax|logsumexp",
    "loss": "loss|cross_entropy|kl_div",
    "pooling": "pool",
    "scan": "cumsum|cumprod|^sort$",
    "reduction": "^(sum|mean|prod|max|min|var|std)$|argmax|argmin|amax|amin",
    "indexing": "index|gather|scatter|embedding|roll|cat|getitem",
}
"""By expressions for operators' names, the first that fits one."""


def category(operators: Sequence[str]) -> str:
    """Return the kind of a task: the heaviest kind of operator in it."""
    fitting = (name for name, words in _CATEGORIES.items() if any(re.search(words, o) for o in operators))
    return next(fitting, "elementwise")


def _speedups(graphs: Iterable[GraphResult]) -> list[float]:
    """Return the end-to-end speedups of the correct subgraphs."""
    return [graph.speedup.e2e for graph in graphs if graph.status == "ok" and graph.speedup]


def _group(name: str, graphs: Sequence[GraphResult]) -> Group:
    speeds = _speedups(graphs)
    return Group(
        name=name,
        subgraphs=len(graphs),
        slower=sum(speed < 1 for speed in speeds),
        wrong=len(graphs) - len(speeds),
        median=statistics.median(speeds) if speeds else None,
    )
