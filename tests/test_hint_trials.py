"""Learned hints as an experiment: planted ones in simulated searches, uplift, what becomes of a hint."""

import math
import random
from collections.abc import Iterator
from itertools import islice

import pytest

from passagent.experience.hint_trials import (
    Arm,
    Learned,
    Tally,
    Trial,
    Uplift,
    choose,
    family_of,
    state_after,
    uplift,
    worth,
)  # fmt: skip
from passagent.experience.hints import Hint

ARM = Arm("start", "normalisation", "cpu")
SEEDS = 200
NOISE = 0.1
"""Standard deviation of an episode's log gain."""


def learned(name: str, confidence: float = 0.5, **more) -> Learned:
    advice = "Advice that is long enough to be some."
    hint = Hint(id=name, trigger=["start"], advice=advice, source="a test", confidence=confidence)
    return Learned(hint, **more)


def drawn(hints: list[Learned], tallies, rng) -> Learned | None:
    return choose(hints, ARM, ["layer_norm"], ["float32"], "cpu", tallies, rng)


def simulated(seed: int, confidence: float, effect: float, episodes: int = 150) -> Iterator[int]:
    """The planted hint's rank, 1 is the best of nine, after each of its uses; `effect` on the log AS."""
    rng, tallies = random.Random(seed), {}
    hints = [learned("planted", confidence), *(learned(f"other-{k}") for k in range(8))]
    for _ in range(episodes):
        one = drawn(hints, tallies, rng)
        if one is None:
            continue
        shown, is_planted = rng.random() < 0.8, one.hint.id == "planted"
        gain = rng.gauss(0.05, NOISE) + (effect if shown and is_planted else 0.0)
        before = tallies.get((one.hint.id, ARM, shown), Tally(0, 0.0))
        tallies[one.hint.id, ARM, shown] = Tally(before.number + 1, before.total + gain)
        if is_planted and shown:
            means = [worth(hint, ARM, tallies)[0] for hint in hints]
            yield 1 + sum(mean > means[0] for mean in means[1:])


def test_a_planted_bad_hint_sinks_and_a_good_one_is_found():
    sinks = found = 0
    for seed in range(SEEDS):
        sinks += any(rank > 5 for rank in islice(simulated(seed, 0.9, math.log(0.8)), 12))
        found += any(rank == 1 for rank in islice(simulated(seed, 0.1, math.log(1.2)), 20))
    assert sinks >= 0.95 * SEEDS and found >= 0.95 * SEEDS


def test_nothing_is_offered_of_what_fits_nothing_is_retired_or_seems_to_harm():
    rng = random.Random(1)
    assert drawn([learned("gone", state="retired")], {}, rng) is None
    bad = {("bad", ARM, True): Tally(40, -8.0)}
    assert all(drawn([learned("bad")], bad, random.Random(seed)) is None for seed in range(20))
    other = choose([learned("one")], ARM._replace(label="mismatch"), ["add"], ["float32"], "cpu", {}, rng)
    assert other is None


def test_an_arm_of_its_own_counts_more_and_what_all_gain_does_not_count():
    here, there = (
        {("a", ARM, True): Tally(10, 2.0)},
        {("a", ARM._replace(family="softmax"), True): Tally(10, 2.0)},
    )
    assert (
        worth(learned("a"), ARM, here)[0]
        > worth(learned("a"), ARM, there)[0]
        > worth(learned("a"), ARM, {})[0]
    )
    held = {("b", ARM, False): Tally(200, 40.0)}
    assert worth(learned("a"), ARM, here | held)[0] < worth(learned("a"), ARM, here)[0] / 2
    assert worth(learned("a", helps=5), ARM, {})[0] > worth(learned("a", harms=5), ARM, {})[0]


def test_uplift_is_the_difference_with_an_interval():
    rng = random.Random(7)
    trials = [
        Trial(f"task {k % 3}", shown := rng.random() < 0.8, 0.8, rng.gauss(0.2 if shown else 0.05, 0.05))
        for k in range(100)
    ]
    found = uplift(trials)
    assert found.low < 0.15 < found.high and found.high - found.low < 0.1
    assert (found.shown + found.held, found.tasks) == (100, 3)
    assert uplift(trials) == found, "the same trials, the same interval"
    assert uplift([]) == Uplift(None, None, None, 0, 0, 0)
    two_rates = [Trial("t", True, 0.5, 1.0), Trial("t", True, 0.25, 4.0), Trial("t", False, 0.5, 0.0)]
    assert uplift(two_rates).estimate == pytest.approx((2 * 1.0 + 4 * 4.0) / 6)


@pytest.mark.parametrize(
    ("state", "estimate", "low", "high", "shown", "held", "tasks", "after"),
    [
        ("probation", 0.2, 0.1, 0.3, 3, 2, 2, "active"),
        ("probation", 0.2, 0.1, 0.3, 2, 2, 2, "probation"),
        ("probation", 0.2, 0.1, 0.3, 3, 2, 1, "probation"),
        ("probation", 0.2, 0.1, 0.3, 3, 1, 2, "probation"),
        ("probation", 0.1, -0.1, 0.3, 9, 9, 3, "probation"),
        ("probation", -0.1, -0.3, 0.1, 9, 9, 3, "probation"),
        ("probation", -0.2, -0.3, -0.1, 9, 9, 3, "retired"),
        ("active", -0.1, -0.3, 0.1, 9, 9, 3, "retired"),
        ("retired", 0.2, 0.1, 0.3, 9, 9, 3, "retired"),
    ],
)
def test_what_becomes_of_a_hint(state, estimate, low, high, shown, held, tasks, after):
    found = Uplift(estimate, low, high, shown, held, tasks)
    assert state_after(state, found) == after


def test_a_wish_to_retire_needs_evidence():
    unsure = Uplift(-0.1, -0.3, 0.1, 9, 9, 3)
    assert state_after("probation", unsure, is_asked=True) == "retired"
    assert state_after("probation", unsure._replace(estimate=0.1), is_asked=True) == "probation"
    assert state_after("probation", unsure._replace(shown=1), is_asked=True) == "probation"


@pytest.mark.parametrize(
    ("operators", "family"),
    [
        (["dropout", "add", "layer_norm"], "normalisation"),
        (["conv2d", "batch_norm", "relu"], "convolution"),
        (["Tensor.view", "Tensor.transpose"], "movement"),
        (["add", "gelu", "Tensor.view"], "elementwise"),
        ([], "movement"),
    ],
)
def test_families(operators, family):
    assert family_of(operators) == family
