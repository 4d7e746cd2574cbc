"""The speedup that blocks of calls of both sides tell, and its interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

TRIALS, MOST_TRIALS = 100, 2000
"""Timed calls of each side, at least and at most."""
INTERVAL = 0.005
"""Half the width of the speedup's 95% interval that is good enough, relative."""
PATIENCE = 2
"""Budgets that a subgraph on a GPU may take while its interval is WIDE times as wide as it should be."""


@dataclass(frozen=True)
class Effort:
    """How much is measured of a subgraph by one pair of workers."""

    device: str
    timeout_s: float
    budget_s: float
    trials: int = TRIALS
    most_trials: int = MOST_TRIALS
    interval: float = INTERVAL
    patience: int = PATIENCE
    """Budgets that the timing may take on a GPU."""


CONFIDENCE = 0.95
NAME = (
    "speedup: midmean over blocks of the median ratio of their calls, eager / compiled; "
    "eager ms: median of the blocks' medians; compiled ms: eager ms / speedup"
)
"""The estimator, for people: printed times follow from the speedup, so they do not contradict it."""
_RESAMPLES = 400
_FEWEST = 8
"""Blocks that tell whether the ratio goes with the machine's pace, at least."""
_SLOPES = (-1 / 3, 1.0)
"""A Line's slopes: from a candidate whose time goes twice as much with the pace as eager's to none."""
_INNER = (0.1, 0.9)
"""Quantiles of the blocks between which a Line is trusted."""
_STEP = 1e-3
"""Difference of two blocks' paces that tells a slope."""

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Line:
    """How the ratios of the blocks go with the machine's pace, and where they are read off.

    log(eager / compiled) as a line in log(eager) + log(compiled), in which neither side has more of a part:
    noise of single blocks tilts it neither way, and eager against itself has slope 0.
    """

    paces: Array
    """log(eager) + log(compiled) of each pair of blocks."""
    eager: float
    """log of eager's time, ns, at the pace for which the speedup is stated."""
    low: float
    """The ratio that is stated is one that blocks had: from here, to `high`."""
    high: float


def log_ratios(eager: Sequence[list[int]], compiled: Sequence[list[int]]) -> Array:
    """log(eager / compiled) of each pair of blocks.

    That is Hodges and Lehmann's estimator of what two medians differ by, the median over all pairs of calls;
    over 30 subgraphs it varied less than the difference of the blocks' medians itself.
    """
    pairs = zip(map(_logs, eager), map(_logs, compiled), strict=True)
    return np.array([float(np.median(np.subtract.outer(tops, bottoms))) for tops, bottoms in pairs])


def line(
    logs: Array, eager: Sequence[list[int]], compiled: Sequence[list[int]], eager_ns: float | None
) -> Line | None:
    """The line on which the speedup is stated for the pace at which eager takes `eager_ns`.

    None if no pace is asked for, or if the ratio does not go with the pace (rank correlation, p > 0.01):
    then nothing distinguishes the blocks.
    """
    if eager_ns is None or len(logs) < _FEWEST:
        return None
    tops, bottoms = (np.array([np.median(_logs(block)) for block in blocks]) for blocks in (eager, compiled))
    freedom = len(logs) - 2
    if abs(_rank_t(logs, tops + bottoms)) < 2.58 + 6.6 / freedom:  # Student's t, p = 0.01
        return None
    stated = np.clip(math.log(eager_ns), *np.quantile(tops, _INNER))
    low, high = np.quantile(logs, _INNER)
    return Line(tops + bottoms, float(stated), float(low), float(high))


def typical_ns(eager: Sequence[list[int]]) -> float:
    """The time of a call of eager's, ns: the median over the blocks."""
    return float(np.exp(np.median([np.median(_logs(block)) for block in eager])))


def ratio(logs: Array, at: Line | None = None) -> float:
    """The midmean of the blocks' ratios: blocks that a machine disturbed count neither way."""
    return float(np.exp(_stated(logs, at, None if at is None else at.paces)))


def interval(logs: Array, at: Line | None = None) -> tuple[float, float]:
    """The bootstrap interval of `ratio`, over the pairs of blocks."""
    random = np.random.default_rng(len(logs))
    drawn = random.integers(len(logs), size=(_RESAMPLES, len(logs)))
    tail = (1 - CONFIDENCE) / 2
    stated = _stated(logs[drawn], at, None if at is None else at.paces[drawn])
    low, high = np.exp(np.quantile(stated, [tail, 1 - tail]))
    return float(low), float(high)


def _stated(logs: Array, at: Line | None, paces: Array | None) -> Array:
    """The midmean over the last axis, or what the line through the blocks says where it is read off."""
    if at is None or paces is None:
        return _midmean(logs)
    slope = _slope(paces, logs)
    level = _midmean(logs - slope[..., None] * paces)
    # level + slope * pace, where pace = 2 * eager - ratio
    return np.clip((level + 2 * slope * at.eager) / (1 + slope), at.low, at.high)


def _slope(paces: Array, logs: Array) -> Array:
    """Theil and Sen's: the median over all pairs of blocks, over the last axis; 0 where none differ."""
    i, j = np.triu_indices(logs.shape[-1], 1)
    steps, rises = (values[..., j] - values[..., i] for values in (paces, logs))
    differ = np.abs(steps) > _STEP
    slopes = np.where(differ, rises / np.where(differ, steps, 1.0), np.nan)
    slopes[..., 0] = np.where(differ.any(axis=-1), slopes[..., 0], 0.0)
    return np.clip(np.nanmedian(slopes, axis=-1), *_SLOPES)


def _rank_t(xs: Array, ys: Array) -> float:
    """Student's t of the rank correlation of two series; 0 if one is constant."""
    first, second = (np.unique(series.round(9), return_inverse=True)[1] for series in (xs, ys))
    if not first.any() or not second.any():
        return 0.0
    r = float(np.corrcoef(first, second)[0, 1])
    return r * math.sqrt((len(xs) - 2) / max(1 - r * r, 1e-12))


def _logs(block: Sequence[int]) -> Array:
    return np.log(np.maximum(block, 1))


def _midmean(values: Array) -> Array:
    """The mean of the middle half, over the last axis."""
    count = values.shape[-1]
    inner = np.sort(values, axis=-1)[..., count // 4 : count - count // 4]
    return inner.mean(axis=-1)  # type: ignore[no-any-return]
