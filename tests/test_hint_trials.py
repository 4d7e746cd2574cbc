"""Learned hints as an experiment: planted ones in simulated searches, uplift, what becomes of a hint."""

import random
import sys
from pathlib import Path

import pytest

from passagent.experience.hint_trials import (
    Tally,
    Trial,
    Uplift,
    choose,
    family_of,
    state_after,
    uplift,
    worth,
)  # fmt: skip

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))
from hint_simulation import ARM, drawn, learned, share


@pytest.mark.parametrize("case", ["bad", "good"])
def test_a_planted_bad_hint_sinks_and_a_good_one_is_found(case):
    assert share(case, noise=0.1, seeds=200) >= 0.95


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
