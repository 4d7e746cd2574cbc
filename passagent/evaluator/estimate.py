"""The speedup that blocks of calls of both sides tell, and its interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

CONFIDENCE = 0.95
_RESAMPLES = 400
_DEPENDS = 2.6
"""Student's t of a rank correlation (p = 0.01), from which on the ratio goes with the machine's pace."""
_CALM = 3
"""Of so many blocks one counts then."""
_FEWEST = 8
"""Blocks that count then, at least; of fewer none are left out."""

Array = np.ndarray[Any, Any]


def log_ratios(eager: Sequence[list[int]], compiled: Sequence[list[int]]) -> Array:
    """log(eager / compiled) of each pair of blocks that counts.

    That is Hodges and Lehmann's estimator of what two medians differ by, the median over all pairs of calls;
    over 30 subgraphs it varied less than the difference of the blocks' medians itself.

    A host that others slow down makes a side slower that waits for it, and not one that waits for the GPU.
    Where the ratio goes with the pace of the two, the third of the blocks in which both were fastest counts:
    the ratio on the machine at its calmest. Eager against itself is not moved by that choice.
    """
    pairs = zip(eager, compiled, strict=True)
    logs = [[np.log(np.maximum(block, 1)) for block in pair] for pair in pairs]
    ratios = np.array([float(np.median(np.subtract.outer(tops, bottoms))) for tops, bottoms in logs])
    paces = np.array([float(np.median(tops) + np.median(bottoms)) for tops, bottoms in logs])
    count = len(ratios) // _CALM
    if count < _FEWEST or abs(_rank_t(ratios, paces)) < _DEPENDS:
        return ratios
    return ratios[np.argsort(paces)[:count]]


def ratio(logs: Array) -> float:
    """The midmean of the blocks' ratios: blocks that a machine disturbed count neither way."""
    return float(np.exp(_midmean(logs)))


def interval(logs: Array) -> tuple[float, float]:
    """The bootstrap interval of `ratio`, over the pairs of blocks."""
    random = np.random.default_rng(len(logs))
    drawn = logs[random.integers(len(logs), size=(_RESAMPLES, len(logs)))]
    tail = (1 - CONFIDENCE) / 2
    low, high = np.exp(np.quantile(_midmean(drawn), [tail, 1 - tail]))
    return float(low), float(high)


def _rank_t(one: Array, other: Array) -> float:
    """Student's t of the rank correlation of two series; 0 if one is constant."""
    first, second = (np.unique(series.round(9), return_inverse=True)[1] for series in (one, other))
    if not first.any() or not second.any():
        return 0.0
    r = float(np.corrcoef(first, second)[0, 1])
    return r * math.sqrt((len(one) - 2) / max(1 - r * r, 1e-12))


def _midmean(values: Array) -> Array:
    """The mean of the middle half, over the last axis."""
    count = values.shape[-1]
    inner = np.sort(values, axis=-1)[..., count // 4 : count - count // 4]
    return inner.mean(axis=-1)  # type: ignore[no-any-return]
