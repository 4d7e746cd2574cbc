"""The winner of a run: which candidate it is, and how sure that is.

The best of many noisy scores is a lucky one. So a run's best candidates, its finalists, are measured again
side by side (search/remeasure.py): in each round of a series every one of them once. The rounds that are
complete name the winner.

ln(AS) is the mean over a task's subgraphs of what each contributes (PassNet Eqs. 3 and 4 are geometric
means), so two finalists are compared subgraph by subgraph within a round, and what slows a whole round down
cancels.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from passagent.evaluator import score
from passagent.evaluator.result import Evaluation, GraphResult, Speedup
from passagent.store import SEEDS, Node, Store, evaluations
from passagent.store.nodes import best_of_island, distinct, get_node
from passagent.store.runs import islands

_T = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23)
"""97.5% points of Student's t for 1, 2, ... degrees of freedom; the normal's is 1.96."""
_OWN = 4
"""Degrees of freedom that a round's own error counts for: two or three rounds tell little by themselves."""
_SAME, _SAME_OF_TWO = 7.0, 2.0
"""Spread of the rounds over their own error, squared, from which on they differ by more than that: about the
95% point of F for three rounds; two, whose spread says little, must agree better."""

CLOSE = 1.01
"""The winner's AS over another's below which it matters little which of the two is named."""
NARROW = 1.05
"""How far the end of the winner's interval may be from its AS before it is known well enough."""
FEWEST_ROUNDS = 2
"""The fewest rounds that give an interval."""


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


@dataclass(frozen=True)
class Measurement:
    """One measurement of one finalist: a row of `confirmations`, and what its evaluation came to."""

    series: int
    """Episodes that were finished when the series began; below 0 of contenders after an episode."""
    round: int
    """1, 2, ... in the series."""
    node_id: int
    evaluation_id: int
    status: str
    as_score: float | None


def winner(store: Store, run_id: str, by_model: bool = False) -> Node | None:
    """The best correct node: of the newest series, if one of its nodes was correct in every round.

    Else the best by its one measurement, of the nodes that the series did not hold. `by_model`: only of the
    run's model; seeds, which were there before its first reply, do not count.
    """
    rows = last_series(store, run_id)
    confirmed = (get_node(store, node_id) for node_id in scores(rows))
    best = next((node for node in confirmed if not (by_model and node.island == SEEDS)), None)
    return best or _best_beside(store, run_id, rows, by_model)


def found_since(store: Store, run_id: str) -> Node | None:
    """The best node that no finalist was better than at first, and that came too late to be one itself."""
    rows = last_series(store, run_id)
    confirmed, node = scores(rows), _best_beside(store, run_id, rows)
    if not confirmed or node is None:
        return None
    first_scores = [get_node(store, row.node_id).as_score or 0.0 for row in rows]
    is_above = (node.as_score or 0.0) > max(next(iter(confirmed.values())) or 0.0, *first_scores)
    return node if is_above else None


def _best_beside(
    store: Store, run_id: str, rows: Sequence[Measurement], by_model: bool = False
) -> Node | None:
    """The best correct node, by its one measurement, that is not of the series `rows`; see `winner`."""
    held = {row.node_id for row in rows}
    ranked = best_of_run(store, run_id, len(held) + 1)
    return next((n for n in ranked if n.id not in held and not (by_model and n.island == SEEDS)), None)


def best_of_run(store: Store, run_id: str, limit: int) -> list[Node]:
    """The best correct nodes, at most `limit` of each population, with distinct sources, best first."""
    populations = [SEEDS, *(island.island for island in islands(store, run_id))]
    return distinct(node for number in populations for node in best_of_island(store, run_id, number, limit))


def contenders(store: Store, run_id: str, limit: int) -> list[Node]:
    """At most `limit` of the best timed nodes: those whose interval reaches the best one's.

    The interval of a node's AS is all there is where it is not known.
    """
    best = [node for node in best_of_run(store, run_id, limit) if node.as_score is not None][:limit]
    measured = [evaluation_of(store, node, samples=False) for node in best]
    highs = [math.inf if evaluation.as_high is None else evaluation.as_high for evaluation in measured]
    return [node for node, high in zip(best, highs, strict=True) if high >= (measured[0].as_low or 0.0)]


def measurements(store: Store, run_id: str) -> list[Measurement]:
    """All measurements of a run's finalists, series by series, in the order that they were made in."""
    return store.all(
        Measurement,
        "SELECT series, round, node_id, evaluation_id, status, as_score FROM confirmations "
        "JOIN evaluations ON evaluations.id = evaluation_id WHERE run_id = :run "
        "ORDER BY series, round, evaluation_id",
        {"run": run_id},
    )


def last_series(store: Store, run_id: str) -> list[Measurement]:
    """The complete rounds of the newest series that has FEWEST_ROUNDS of them; empty if there is none."""
    newest: list[Measurement] = []
    for _, series in itertools.groupby(measurements(store, run_id), key=lambda row: row.series):
        rounds = [list(rows) for _, rows in itertools.groupby(series, key=lambda row: row.round)]
        complete = [rows for rows in rounds if len(rows) == len(rounds[0])]
        if len(complete) >= FEWEST_ROUNDS:
            newest = [row for rows in complete for row in rows]
    return newest


def scores(rows: Sequence[Measurement]) -> dict[int, float | None]:
    """The AS of each finalist that was correct in every round: the geometric mean of its rounds.

    None for one that could not be timed; the best first.
    """
    by_node: dict[int, list[Measurement]] = {}
    for row in rows:
        by_node.setdefault(row.node_id, []).append(row)
    means: dict[int, float | None] = {}
    for node_id, of_node in by_node.items():
        values = [row.as_score for row in of_node if row.as_score]
        if all(row.status == "ok" for row in of_node):
            means[node_id] = score.geometric_mean(values) if len(values) == len(of_node) else None
    return dict(sorted(means.items(), key=lambda item: -(item[1] or 0.0)))


def score_of(store: Store, node: Node) -> float | None:
    """The node's AS: as it was confirmed, if it was a finalist."""
    return scores(last_series(store, node.run_id)).get(node.id, node.as_score)


def rounds_of(store: Store, rows: Sequence[Measurement]) -> dict[int, list[Round]]:
    """The rounds of each finalist that was correct throughout, for `standing`."""
    confirmed = scores(rows)
    measured: dict[int, list[Round]] = {}
    for row in rows:
        if confirmed.get(row.node_id) is not None:
            result = evaluations.get_evaluation(store, row.evaluation_id, samples=False)
            measured.setdefault(row.node_id, []).append(round_of(Evaluation.model_validate(result)))
    return measured


def evaluation_of(store: Store, node: Node, samples: bool = True) -> Evaluation:
    """The evaluation of a node that is done, in a fraction of the time without its timing `samples`."""
    assert node.evaluation_id is not None
    return Evaluation.model_validate(evaluations.get_evaluation(store, node.evaluation_id, samples))


def confirmed_evaluation(store: Store, node: Node) -> Evaluation:
    """The evaluation of a node that is done: of a finalist its rounds pooled, else its one measurement."""
    rounds = [row.evaluation_id for row in last_series(store, node.run_id) if row.node_id == node.id]
    if not rounds:
        return evaluation_of(store, node)
    results = (evaluations.get_evaluation(store, evaluation_id, samples=False) for evaluation_id in rounds)
    return pooled([Evaluation.model_validate(result) for result in results])


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
    speedup = _pooled_speedup([graph.speedup for graph in rounds])
    vs_reference = _pooled_speedup([graph.vs_reference for graph in rounds])
    eager_ms = score.geometric_mean(times) if all(times := [g.eager_ms or 0.0 for g in rounds]) else None
    compiled_ms = eager_ms / speedup.e2e if eager_ms and speedup else None
    ms = {"eager_ms": eager_ms, "compiled_ms": compiled_ms}
    counts = {"trials": sum(g.trials for g in rounds), "unstable": all(g.unstable for g in rounds)}
    names = ("eager_samples_ms", "compiled_samples_ms", "blocks", "pairs")
    samples: dict[str, Any] = {name: [] for name in names}
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
    means = {node_id: [fmean(r.graphs) for r in rounds] for node_id, rounds in measured.items()}
    order = sorted(means, key=lambda node_id: -fmean(means[node_id]))
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
        ahead.append(fmean([a - b for a, b in zip(mine.graphs, theirs.graphs, strict=True)]))
        is_known = mine.error is not None and theirs.error is not None
        errors.append(math.hypot(mine.error or 0.0, theirs.error or 0.0) if is_known else None)
    return interval(ahead, errors)


def interval(rounds: Sequence[float], errors: Sequence[float | None]) -> Interval:
    """The mean over the rounds, normal theory: their spread, and the error that each has by itself.

    Where rounds do not differ by much more than their own errors say, the two estimates are pooled; else, and
    where errors are not known, the rounds alone count.
    """
    n, mean = len(rounds), fmean(rounds)
    if n < 2:
        return Interval(math.exp(mean), 0.0, math.inf)
    spread, freedom = math.fsum((value - mean) ** 2 for value in rounds) / (n - 1), n - 1
    variances = [error**2 for error in errors if error is not None]
    if len(variances) == n and spread <= (_SAME if n > 2 else _SAME_OF_TWO) * fmean(variances):
        spread = (_OWN * fmean(variances) + freedom * spread) / (_OWN + freedom)
        freedom += _OWN
    half = (_T[freedom - 1] if freedom <= len(_T) else 2.0) * math.sqrt(spread / n)
    return Interval(*(math.exp(mean + offset) for offset in (0.0, -half, half)))
