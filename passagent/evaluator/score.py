"""From measurements to scores: tolerances, ES(t), AS, S(t) and the benchmark table's columns.

The formulas are PassNet 3.5 and Appendices D-F (GraphNet 3.2 and Appendices A-C), in one form where
the papers' print is garbled: docs/evaluator.md states it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

T_RANGE = range(-10, 5)
"""Tolerance levels t = -10..4."""
STRICT_T = -3
"""End of the strict-correctness regime (PassNet App. E): what a subgraph must pass to be called correct."""
B, P = 0.1, 0.0
"""The score of a wrong subgraph, and the exponent of the slow-down penalty: s^(p+1) for s < 1."""
SETS = 3
"""Input sets that outputs are compared on: the recorded statistics and own draws."""
BEYOND_SET = 4
"""The set of values beyond what was recorded."""
ERROR_KINDS = 3
"""|E|: accuracy, runtime, compilation."""

Failure = Literal["accuracy", "runtime", "compilation", "integrity"]
_FORGIVEN_FROM: dict[Failure, float] = {"accuracy": 1, "runtime": 3, "compilation": 3, "integrity": math.inf}

_SLOPES = {
    "float16": (1.0, 3 / 5),
    "complex32": (1.0, 3 / 5),
    "bfloat16": (1.0, 1.796 / 5),
    "float32": (1.0, 5.886 / 5),
    "complex64": (1.0, 5.886 / 5),
    "quint8": (1.0, 5.886 / 5),
    "qint8": (1.0, 5.886 / 5),
    "qint32": (1.0, 5.886 / 5),
    "quint4x2": (1.0, 5.886 / 5),
    "quint2x4": (1.0, 5.886 / 5),
    "float64": (7 / 5, 7 / 5),
    "complex128": (7 / 5, 7 / 5),
}


def tolerance(dtype: str, t: int) -> tuple[float, float]:
    """`(atol, rtol)` of an output of `dtype` at level t; t > 1 is judged at 1 (PassNet App. F).

    Dtypes without a slope (integers, bool) must be equal: (0, 0).
    """
    slopes = _SLOPES.get(dtype)
    if slopes is None:
        return 0.0, 0.0
    level = min(t, 1)
    return 10 ** (level * slopes[0]), 10 ** (level * slopes[1])


@dataclass(frozen=True)
class GraphScore:
    """The part of one subgraph's result that the score needs."""

    speedup: float | None
    """eager / compiled; None if it was not timed."""
    passes_from_t: int | None
    """Smallest t at which every output is within tolerance; None: at none, or nothing was compared."""
    failure: Failure | None = None
    """Why there is no speedup; an accuracy failure may still have one, for the t at which it passes."""

    def correct(self, t: int) -> bool:
        """correct_{t,i}: it ran, was timed, and is within tolerance at level t."""
        broken = self.failure not in (None, "accuracy")
        return (
            not broken
            and self.speedup is not None
            and self.passes_from_t is not None
            and min(t, 1) >= self.passes_from_t
        )


def rectified(graph: GraphScore, t: int, b: float = B, p: float = P) -> float:
    """Error-aware rectified speedup (PassNet Eq. 2; GraphNet Eq. 10)."""
    if graph.correct(t):
        assert graph.speedup is not None
        return graph.speedup if graph.speedup >= 1 else graph.speedup ** (p + 1)
    failure: Failure = graph.failure or "accuracy"
    return 1.0 if t >= _FORGIVEN_FROM[failure] else b


def geometric_mean(values: Sequence[float]) -> float:
    """exp of the mean log; raises ValueError if there is no value."""
    if not values:
        raise ValueError("geometric mean of nothing")
    return math.exp(math.fsum(math.log(value) for value in values) / len(values))


def es(graphs: Sequence[GraphScore], t: int, b: float = B, p: float = P) -> float:
    """ES(t): the geometric mean of the rectified speedups (PassNet Eq. 3)."""
    return geometric_mean([rectified(graph, t, b, p) for graph in graphs])


def weight(t: int) -> float:
    """W_t of AS (PassNet Eq. 10)."""
    if t <= -6 or t >= ERROR_KINDS + 1:
        return 0.001
    return 1.0 if t <= -3 else 0.8 ** (t + 3)


def aggregate(es_by_t: dict[int, float]) -> float:
    """AS: the weighted geometric mean of ES(t) over T_RANGE (PassNet Eq. 4)."""
    total = math.fsum(weight(t) for t in T_RANGE)
    return math.exp(math.fsum(weight(t) * math.log(es_by_t[t]) for t in T_RANGE) / total)


def as_score(graphs: Sequence[GraphScore], b: float = B, p: float = P) -> float:
    """AS of a task's subgraphs."""
    return aggregate({t: es(graphs, t, b, p) for t in T_RANGE})


def fast_1(speedups: Sequence[float | None]) -> float:
    """Share of subgraphs that are correct and at least as fast as eager; None stands for a wrong one."""
    return sum(s is not None and s >= 1 for s in speedups) / len(speedups)
