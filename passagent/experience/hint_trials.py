"""Learned hints as an experiment: which one an episode is offered, and what the offers say of it.

Pure functions. An episode is offered at most one learned hint, by Thompson sampling, and is shown it with a
known probability (the propensity). What episodes gained with it and without it says what it is worth.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from passagent.experience.hints import GAIN_SCALE, PRIOR_GAIN, PRIOR_USES, Hint, fitness

State = Literal["probation", "active", "retired"]
MIN_SHOWN, MIN_TASKS, MIN_HELD = 3, 2, 2
"""Outcomes with a hint, tasks that they are of, and outcomes without it, before anything is said of it."""
DRAWS = 1000
"""Of the bootstrap."""

_FAMILIES = {
    "attention": {"scaled_dot_product_attention"},
    "convolution": {"conv1d", "conv2d", "conv3d", "conv_transpose2d", "conv_transpose1d", "conv_transpose3d"},
    "product": {"linear", "matmul", "bmm", "einsum", "mm", "addmm", "baddbmm", "imatmul"},
    "normalisation": {"layer_norm", "batch_norm", "group_norm", "rms_norm", "instance_norm", "normalize"},
    "softmax": {"softmax", "log_softmax", "cross_entropy", "logsumexp"},
    "pooling": {"adaptive_avg_pool2d", "avg_pool2d", "max_pool2d", "adaptive_max_pool2d", "interpolate"},
    "reduction": {"sum", "mean", "max", "min", "amax", "amin", "norm", "var", "std", "cumsum", "argmax"},
    "lookup": {"embedding", "gather", "index_select", "scatter", "roll"},
    "movement": {
        "view", "reshape", "transpose", "permute", "cat", "split", "chunk", "getitem", "expand", "contiguous",
        "flatten", "unsqueeze", "squeeze", "pad", "stack", "repeat", "tile", "dropout", "to", "t",
    },
}  # fmt: skip
"""Operator families. A task's is the first that it has an operator of, `movement` only if it has no other."""


class Arm(NamedTuple):
    """What a hint is judged by: where, on what, and where it runs."""

    label: str
    """Of the diagnosis of what the episode starts from."""
    family: str
    """Of the task's operators."""
    device: str
    """`cpu`, or the GPU's model."""


class Tally(NamedTuple):
    """Gains of the episodes of a hint and an arm."""

    number: int
    total: float
    """Sum of log gains."""


Tallies = Mapping[tuple[str, Arm, bool], Tally]
"""Of (hint's id, arm, whether it was shown)."""


@dataclass(frozen=True)
class Learned:
    """A hint that a model wrote about an episode."""

    hint: Hint
    state: State = "probation"
    helps: int = 0
    """Votes of later episodes that say so."""
    harms: int = 0
    """Votes against it."""

    @property
    def confidence(self) -> float:
        """The author's, moved by votes as if it came of four of them."""
        return (PRIOR_USES * self.hint.confidence + self.helps) / (PRIOR_USES + self.helps + self.harms)


class Trial(NamedTuple):
    """An episode that was offered a hint, and what came of it."""

    task: str
    shown: bool
    propensity: float
    """The probability with which it was shown."""
    gain: float
    """Log gain in AS over where the episode started."""


class Uplift(NamedTuple):
    """What showing a hint gains: difference of the mean log gains with it and without it."""

    estimate: float | None
    """None: no outcome with it, or none without it."""
    low: float | None
    """Ends of the 95% bootstrap interval; None with fewer than two outcomes on a side."""
    high: float | None
    shown: int
    held: int
    """Outcomes of episodes that were offered it and not shown it."""
    tasks: int
    """That outcomes with it are of."""


def family_of(operators: Iterable[str]) -> str:
    """The family of a task's operators."""
    present = {name.rpartition(".")[2] for name in operators}
    rest = present - _FAMILIES["movement"]
    for family, names in _FAMILIES.items():
        if family != "movement" and rest & names:
            return family
    return "elementwise" if rest else "movement"


def worth(learned: Learned, arm: Arm, tallies: Tallies) -> tuple[float, float]:
    """Mean and standard deviation of the posterior of the log gain that a hint brings in an arm.

    The prior of the confidence is moved by what the hint gained anywhere, and that by what it gained in this
    arm. A gain counts as what is over that of episodes with the same diagnosis that were not shown theirs.
    """
    seen = [
        (own, tally.number, tally.total - tally.number * _without(own, tallies))
        for (name, own, shown), tally in tallies.items()
        if name == learned.hint.id and shown
    ]
    count = sum(n for _, n, _ in seen)
    prior = PRIOR_USES * PRIOR_GAIN * learned.confidence
    overall = (prior + sum(total for *_, total in seen)) / (PRIOR_USES + count)
    here = sum(n for own, n, _ in seen if own == arm)
    total = sum(total for own, _, total in seen if own == arm)
    mean = (PRIOR_USES * overall + total) / (PRIOR_USES + here)
    return mean, GAIN_SCALE / math.sqrt(PRIOR_USES + count)


def _without(arm: Arm, tallies: Tallies) -> float:
    """Mean log gain of episodes with this diagnosis and device that were not shown a hint, shrunk to 0."""
    held = [
        tally
        for (_, own, shown), tally in tallies.items()
        if not shown and (own.label, own.device) == (arm.label, arm.device)
    ]
    return sum(tally.total for tally in held) / (PRIOR_USES + sum(tally.number for tally in held))


def choose(
    hints: Iterable[Learned],
    arm: Arm,
    operators: Iterable[str],
    dtypes: Iterable[str],
    target: str,
    tallies: Tallies,
    rng: random.Random,
) -> Learned | None:
    """The hint that an episode is offered: the one that fits and of which the best is drawn.

    None where no hint fits, and where nothing good is drawn of any.
    """
    used, kinds = set(operators), set(dtypes)
    best: tuple[float, Learned] | None = None
    for learned in sorted(hints, key=lambda one: one.hint.id):
        if learned.state == "retired" or not fitness(learned.hint, arm.label, used, target, kinds):
            continue
        drawn = rng.gauss(*worth(learned, arm, tallies))
        if drawn > 0 and (best is None or drawn > best[0]):
            best = drawn, learned
    return None if best is None else best[1]


def uplift(trials: Sequence[Trial], seed: int = 0) -> Uplift:
    """What showing a hint gains, by inverse propensity weights, with a bootstrap interval over outcomes."""
    shown = [(one.gain, 1 / one.propensity) for one in trials if one.shown and one.propensity > 0]
    held = [(one.gain, 1 / (1 - one.propensity)) for one in trials if not one.shown and one.propensity < 1]
    tasks = len({one.task for one in trials if one.shown})
    estimate = _mean(shown) - _mean(held) if shown and held else None
    if min(len(shown), len(held)) < 2:
        return Uplift(estimate, None, None, len(shown), len(held), tasks)
    rng = random.Random(seed)
    drawn = sorted(
        _mean(rng.choices(shown, k=len(shown))) - _mean(rng.choices(held, k=len(held))) for _ in range(DRAWS)
    )
    low, high = drawn[round(0.025 * (DRAWS - 1))], drawn[round(0.975 * (DRAWS - 1))]
    return Uplift(estimate, low, high, len(shown), len(held), tasks)


def _mean(weighted: Sequence[tuple[float, float]]) -> float:
    return sum(gain * weight for gain, weight in weighted) / sum(weight for _, weight in weighted)


def state_after(state: State, found: Uplift, is_asked: bool = False) -> State:
    """What becomes of a hint: it leaves probation when it surely helps, and retires when it surely harms.

    An active one, and one that a distiller asks to retire (`is_asked`), retires already when its estimate is
    below zero. A retired one stays retired.
    """
    if state == "retired" or found.estimate is None or found.low is None or found.high is None:
        return state
    if found.shown < MIN_SHOWN or found.tasks < MIN_TASKS or found.held < MIN_HELD:
        return state
    if found.high < 0 or ((state == "active" or is_asked) and found.estimate < 0):
        return "retired"
    return "active" if found.low > 0 else state
