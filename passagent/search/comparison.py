"""Compare finalists by rounds in which all were measured side by side: the best, and how sure that is.

ln(AS) is the mean over a task's subgraphs of what each contributes (PassNet Eqs. 3 and 4 are geometric
means), so two finalists are compared subgraph by subgraph within a round, and what slows a whole round down
cancels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from passagent.evaluator import score
from passagent.evaluator.result import Evaluation, GraphResult, Speedup
from passagent.store import Store, confirmations, evaluations
from passagent.store.nodes import Node

_T = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23)
"""97.5% points of Student's t for 1, 2, ... degrees of freedom; the normal's is 1.96."""
_OWN = 4
"""Degrees of freedom that a round's own error counts for: two or three rounds tell little by themselves."""
_SAME, _SAME_OF_TWO = 7.0, 2.0
"""Spread of the rounds over their own error, squared, from which on they differ by more than that: about the
95% point of F for three rounds; two, whose spread says little, must agree better."""

_RATIOS, _SAMPLES = (
    ("speedup", "vs_reference"),
    ("eager_samples_ms", "compiled_samples_ms", "blocks", "pairs"),
)

CLOSE = 1.01
"""The winner's AS over another's below which it matters little which of the two is named."""
NARROW = 1.05
"""How far the end of the winner's interval may be from its AS before it is known well enough."""


@dataclass(frozen=True)
class Round:
    """One measurement of a finalist."""

    graphs: list[float]
    """ln(AS) of each subgraph by itself; their mean is the ln(AS) of the whole."""
    error: float | None
    """Standard error of that mean, by the intervals of the speedups; None where one has none."""


@dataclass(frozen=True)
class Interval:
    """A mean of logs with its 95% interval, back in ratios."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Finalist:
    """How a finalist came off."""

    node_id: int
    as_score: Interval
    behind: Interval | None
    """The winner's AS over its own, paired; None for the winner. One that holds 1 leaves the order open."""

    @property
    def is_behind(self) -> bool:
        """Tell whether the winner is better for sure."""
        return self.behind is not None and self.behind.low > 1


def round_of(evaluation: Evaluation) -> Round:
    """Summarise the evaluation of a correct candidate."""
    scores = []
    for graph in evaluation.graphs:
        graph_score = score.GraphScore(graph.speedup.e2e if graph.speedup else None, graph.passes_from_t)
        scores.append(math.log(score.as_score([graph_score])))
    errors = [_error(graph.speedup) for graph in evaluation.graphs]
    sure = [error for error in errors if error is not None]
    return Round(scores, math.hypot(*sure) / len(sure) if len(sure) == len(errors) else None)


def _error(speedup: Speedup | None) -> float | None:
    """Standard error of ln(speedup), by its interval; None where it has none."""
    if speedup is None or not speedup.low or not speedup.high:
        return None
    return math.log(speedup.high / speedup.low) / (2 * 1.96)


def confirmed_evaluation(store: Store, node: Node) -> Evaluation:
    """The evaluation of a node that is done: of a finalist its rounds pooled, else its one measurement."""
    rows = [row for row in confirmations.last_series(store, node.run_id) if row.node_id == node.id]
    ids = [row.evaluation_id for row in rows if row.evaluation_id is not None]
    if ids:
        results = (evaluations.get_evaluation(store, evaluation_id, samples=False) for evaluation_id in ids)
        return pooled([Evaluation.model_validate(result) for result in results])
    assert node.evaluation_id is not None
    return Evaluation.model_validate(evaluations.get_evaluation(store, node.evaluation_id))


def pooled(rounds: Sequence[Evaluation]) -> Evaluation:
    """One evaluation of a candidate from those of all its rounds: the first that failed, if there is one.

    Times, speedups, ES and AS are geometric means, with the 95% interval of `interval`; of exactness the
    worst counts. `protocol["rounds"]` says how many there were; samples stay with them.
    """
    failed = next((evaluation for evaluation in rounds if evaluation.status != "ok"), None)
    last, scores = rounds[-1], [evaluation.as_score for evaluation in rounds if evaluation.as_score]
    if failed or len(scores) < max(2, len(rounds)):
        return failed or last
    whole = interval([math.log(x) for x in scores], [round_of(e).error for e in rounds])
    graphs = [_pooled_graph(of) for of in zip(*(evaluation.graphs for evaluation in rounds), strict=True)]
    speedups = [graph.speedup.e2e for graph in graphs if graph.speedup]
    vs_reference = [graph.vs_reference.e2e for graph in graphs if graph.vs_reference]
    es = {t: score.geometric_mean([e.es[t] for e in rounds if e.es]) for t in last.es or {}}
    ends = {"as_score": whole.value, "as_low": whole.low, "as_high": whole.high}
    gmeans = {"gmean_vs_reference": score.geometric_mean(vs_reference) if vs_reference else None}
    if speedups:
        gmeans |= {"gmean_speedup": score.geometric_mean(speedups), "fast_1": score.fast_1(speedups)}
    protocol = last.protocol | {"rounds": len(rounds), "interval": "over the rounds, 95%"}
    return last.model_copy(
        update=ends | gmeans | {"es": es, "graphs": graphs, "bar": None, "protocol": protocol}
    )


def _pooled_graph(rounds: Sequence[GraphResult]) -> GraphResult:
    """One subgraph's result from those of all rounds, see pooled."""
    worst = max(rounds, key=lambda graph: (graph.passes_from_t or 0, graph.max_abs_diff or 0.0))
    speedup, vs_reference = (_pooled_speedup([getattr(graph, name) for graph in rounds]) for name in _RATIOS)
    eager_ms = score.geometric_mean(times) if all(times := [g.eager_ms or 0.0 for g in rounds]) else None
    compiled_ms = eager_ms / speedup.e2e if eager_ms and speedup else None
    ms = {"eager_ms": eager_ms, "compiled_ms": compiled_ms, "pace_ms": worst.pace_ms and eager_ms}
    counts = {"trials": sum(g.trials for g in rounds), "unstable": all(g.unstable for g in rounds)}
    samples: dict[str, Any] = {name: [] for name in _SAMPLES}
    return worst.model_copy(update=samples | ms | counts | {"speedup": speedup, "vs_reference": vs_reference})


def _pooled_speedup(rounds: Sequence[Speedup | None]) -> Speedup | None:
    """The geometric mean over the rounds; None where one has no speedup."""
    speedups = [speedup for speedup in rounds if speedup is not None]
    if len(speedups) < len(rounds):
        return None
    whole = interval([math.log(s.e2e) for s in speedups], [_error(s) for s in speedups])
    return Speedup(e2e=whole.value, low=whole.low, high=whole.high)


def standing(measured: Mapping[int, Sequence[Round]]) -> list[Finalist]:
    """The finalists, the best first; ties keep the order they came in."""
    means = {node_id: [_mean(r.graphs) for r in rounds] for node_id, rounds in measured.items()}
    order = sorted(means, key=lambda node_id: -_mean(means[node_id]))
    return [
        Finalist(
            node_id,
            interval(means[node_id], [measured_round.error for measured_round in measured[node_id]]),
            None if node_id == order[0] else _behind(measured[order[0]], measured[node_id]),
        )
        for node_id in order
    ]


def is_settled(finalists: Sequence[Finalist]) -> bool:
    """Tell whether further rounds would add nothing: the winner's AS is known, and who is behind it.

    Each of the others is behind for sure, or for sure less than 1% behind.
    """
    if not finalists:
        return True
    best, *others = finalists
    sure = best.as_score.high <= NARROW * best.as_score.value
    return sure and all(f.is_behind or (f.behind and f.behind.high < CLOSE) for f in others)


def _behind(best: Sequence[Round], other: Sequence[Round]) -> Interval:
    """How far `best` is ahead: for each round the mean over the subgraphs."""
    ahead, errors = [], []
    for mine, theirs in zip(best, other, strict=True):
        ahead.append(_mean([a - b for a, b in zip(mine.graphs, theirs.graphs, strict=True)]))
        is_known = mine.error is not None and theirs.error is not None
        errors.append(math.hypot(mine.error or 0.0, theirs.error or 0.0) if is_known else None)
    return interval(ahead, errors)


def interval(rounds: Sequence[float], errors: Sequence[float | None]) -> Interval:
    """The mean over the rounds, normal theory: their spread, and the error that each has by itself.

    Where rounds do not differ by much more than their own errors say, the two estimates are pooled; else, and
    where errors are not known, the rounds alone count.
    """
    n, mean = len(rounds), _mean(rounds)
    if n < 2:
        return Interval(math.exp(mean), 0.0, math.inf)
    spread, freedom = math.fsum((value - mean) ** 2 for value in rounds) / (n - 1), n - 1
    variances = [error**2 for error in errors if error is not None]
    if len(variances) == n and spread <= (_SAME if n > 2 else _SAME_OF_TWO) * _mean(variances):
        spread = (_OWN * _mean(variances) + freedom * spread) / (_OWN + freedom)
        freedom += _OWN
    half = (_T[freedom - 1] if freedom <= len(_T) else 2.0) * math.sqrt(spread / n)
    return Interval(*(math.exp(mean + offset) for offset in (0.0, -half, half)))


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
