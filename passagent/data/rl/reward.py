"""From an evaluation to a reward: no finer than what was measured.

A trainer compares the rewards of a group. A difference that is within the measurement's noise would be
learned from like any other. So ln(AS) is rounded to a step as wide as the evaluation's own interval:

    step = the smallest of 1, 2 and 5 times a power of ten that is >= ln(as_high / as_low), and >= FLOOR
    AS'  = exp(step * round(ln(AS) / step))

`as_low` and `as_high` are the AS with every speedup at an end of its 95% interval (evaluator/result.py). The
logarithm is rounded because AS is a geometric mean of speedups: the same step is the same factor everywhere,
AS = 1 (eager) stays 1, and no correct candidate is rounded to 0.
"""

from __future__ import annotations

import math

from passagent.evaluator.result import Evaluation

FLOOR = 0.001
"""The smallest step of ln(AS): a tenth of a per cent."""


def step_of(evaluation: Evaluation) -> float:
    """The step of ln(AS) to which this evaluation is known."""
    low, high = evaluation.as_low, evaluation.as_high
    width = math.log(high / low) if low and high and high > low else 0.0
    return _round_up(max(width, FLOOR))


def _round_up(width: float) -> float:
    """The smallest of 1, 2 and 5 times a power of ten that is not below `width` > 0."""
    power = math.floor(math.log10(width) + 1e-9)
    exact = [float(f"{digit}e{power}") for digit in (1, 2, 5, 10)]
    return next(step for step in exact if step >= width * (1 - 1e-9))


def rounded_as(evaluation: Evaluation) -> float | None:
    """AS rounded to the evaluation's step, to six digits; None where it has none, or nothing was measured."""
    score = evaluation.as_score
    if score is None or evaluation.status == "infrastructure":
        return None
    if score <= 0:
        return 0.0
    step = step_of(evaluation)
    return float(f"{math.exp(step * round(math.log(score) / step)):.6g}")


def reward_of(evaluation: Evaluation) -> float:
    """What a candidate is worth by itself: 0 if it was refused or has no AS, else its rounded AS."""
    if evaluation.status == "refused":
        return 0.0
    return rounded_as(evaluation) or 0.0
