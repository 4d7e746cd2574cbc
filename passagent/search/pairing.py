"""Which finalist is best, and how sure that is: from rounds in which all were measured side by side.

ln(AS) is the mean over a task's subgraphs of what each contributes (PassNet Eqs. 3 and 4 are geometric
means), so two finalists are compared subgraph by subgraph within a round, and what slows a whole round down
cancels.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from passagent.evaluator import score
from passagent.evaluator.result import Evaluation

RESAMPLES = 2000
_T = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23)
"""97.5% points of Student's t for 1, 2, ... degrees of freedom; the normal's is 1.96."""

CLOSE = 1.01
"""The winner's AS over another's below which it matters little which of the two is named."""
NARROW = 1.05
"""How far the end of the winner's interval may be from its AS before it is known well enough."""

Rounds = list[list[float]]
"""Of a finalist: for each round ln(AS) of each subgraph."""


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
        """Whether the winner is better for sure."""
        return self.behind is not None and self.behind.low > 1


def contributions(evaluation: Evaluation) -> list[float]:
    """ln(AS) of each subgraph of a correct candidate by itself; their mean is the ln(AS) of the whole."""
    b, p = (float(evaluation.protocol.get(name, default)) for name, default in (("b", 0.1), ("p", 0.0)))
    graphs = [
        score.GraphScore(graph.speedup.e2e if graph.speedup else None, graph.passes_from_t)
        for graph in evaluation.graphs
    ]
    return [math.log(score.as_score([graph], b, p)) for graph in graphs]


def standing(measured: Mapping[int, Rounds]) -> list[Finalist]:
    """The finalists, the best first; ties keep the order they came in."""
    means = {node_id: [_mean(graphs) for graphs in rounds] for node_id, rounds in measured.items()}
    order = sorted(means, key=lambda node_id: -_mean(means[node_id]))
    return [
        Finalist(
            node_id,
            interval(means[node_id]),
            None if node_id == order[0] else interval(_paired(measured[order[0]], measured[node_id])),
        )
        for node_id in order
    ]


def is_settled(found: Sequence[Finalist]) -> bool:
    """Whether further rounds have nothing to tell: the winner's AS is known, and who is behind it.

    Each of the others is behind for sure, or for sure less than 1% behind. The intervals of two or three
    rounds are as wide as so few rounds make them.
    """
    if not found:
        return True
    best, *others = found
    known = best.as_score.high <= NARROW * best.as_score.value
    return known and all(one.is_behind or (one.behind and one.behind.high < CLOSE) for one in others)


def _paired(best: Rounds, other: Rounds) -> list[float]:
    """For each round the mean over the subgraphs of how far `best` is ahead."""
    return [
        _mean([mine - theirs for mine, theirs in zip(*graphs, strict=True)])
        for graphs in zip(best, other, strict=True)
    ]


def interval(rounds: Sequence[float]) -> Interval:
    """The mean over the rounds and its bootstrap interval: whole rounds are drawn, with replacement.

    So few rounds make a bootstrap too sure of itself: what it leaves out is put back (the n - 1 of a
    variance, and Student's t in place of the normal).
    """
    n, mean = len(rounds), _mean(rounds)
    if n < 2:
        return Interval(math.exp(mean), 0.0, math.inf)
    rng = random.Random(0)
    drawn = sorted(_mean(rng.choices(rounds, k=n)) - mean for _ in range(RESAMPLES))
    wider = math.sqrt(n / (n - 1)) * (_T[n - 2] if n - 2 < len(_T) else 2.0) / 1.96
    low, high = (drawn[int(RESAMPLES * share)] * wider for share in (0.025, 0.975))
    return Interval(*(math.exp(mean + offset) for offset in (0.0, low, high)))


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
