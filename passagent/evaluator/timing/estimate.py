"""The speedup that blocks of calls of both sides tell, and its interval."""

from __future__ import annotations

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
    is_brief: bool = False
    """Turns on a GPU are as short as they may be: a search's."""


CONFIDENCE = 0.95
NAME = (
    "speedup: midmean over blocks of the median ratio of their calls, eager / compiled; "
    "eager ms: median of the blocks' medians; compiled ms: eager ms / speedup"
)
"""The estimator, for people: printed times follow from the speedup, so they do not contradict it."""
_RESAMPLES = 400
Array = np.ndarray[Any, Any]


def log_ratios(eager: Sequence[list[int]], compiled: Sequence[list[int]]) -> Array:
    """log(eager / compiled) of each pair of blocks.

    That is Hodges and Lehmann's estimator of what two medians differ by, the median over all pairs of calls;
    over 30 subgraphs it varied less than the difference of the blocks' medians itself.
    """
    pairs = zip(map(_logs, eager), map(_logs, compiled), strict=True)
    return np.array([float(np.median(np.subtract.outer(tops, bottoms))) for tops, bottoms in pairs])


def typical_ns(eager: Sequence[list[int]]) -> float:
    """The time of a call of eager's, ns: the median over the blocks."""
    return float(np.exp(np.median([np.median(_logs(block)) for block in eager])))


def ratio(logs: Array) -> float:
    """The midmean of the blocks' ratios: blocks that a machine disturbed count neither way."""
    return float(np.exp(_midmean(logs)))


def interval(logs: Array) -> tuple[float, float]:
    """The bootstrap interval of `ratio`, over the pairs of blocks."""
    random = np.random.default_rng(len(logs))
    drawn = random.integers(len(logs), size=(_RESAMPLES, len(logs)))
    tail = (1 - CONFIDENCE) / 2
    low, high = np.exp(np.quantile(_midmean(logs[drawn]), [tail, 1 - tail]))
    return float(low), float(high)


def _logs(block: Sequence[int]) -> Array:
    return np.log(np.maximum(block, 1))


def _midmean(values: Array) -> Array:
    """The mean of the middle half, over the last axis."""
    count = values.shape[-1]
    inner = np.sort(values, axis=-1)[..., count // 4 : count - count // 4]
    return inner.mean(axis=-1)  # type: ignore[no-any-return]
