"""Simulated searches with a planted hint: how soon a bad one sinks and a good one is found.

    python benchmarks/hint_simulation.py

Nine hints fit; one is planted, the others do nothing. An episode gains what is drawn, and the planted hint's
effect where it is shown. Counted is for how many seeds the planted hint's rank by expected gain (1: the best)
is below the median within 12 uses, or first within 20. Raw results go to
benchmarks/results/hint-simulation-cpu-<date>.json.
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from passagent.experience.hint_trials import Arm, Learned, Tally, choose, worth
from passagent.experience.hints import Hint

ARM = Arm("start", "normalisation", "cpu")
SHOWN = 0.8
OTHERS = 8
CASES = {
    "bad": {"confidence": 0.9, "effect": math.log(0.8), "uses": 12},
    "good": {"confidence": 0.1, "effect": math.log(1.2), "uses": 20},
}


def learned(name: str, confidence: float = 0.5, **more: Any) -> Learned:
    """A hint that fits everywhere."""
    advice = "Advice that is long enough to be some."
    hint = Hint(id=name, trigger=["start"], advice=advice, source="a test", confidence=confidence)
    return Learned(hint, **more)


def drawn(hints: list[Learned], tallies: Any, rng: random.Random) -> Learned | None:
    """The hint that an episode is offered."""
    return choose(hints, ARM, ["layer_norm"], ["float32"], "cpu", tallies, rng)


def simulated(
    seed: int, confidence: float, effect: float, noise: float, episodes: int = 150
) -> Iterator[int]:
    """The planted hint's rank after each of its uses; `noise`: of the log gain, a standard deviation."""
    rng, tallies = random.Random(seed), dict[Any, Tally]()
    hints = [learned("planted", confidence), *(learned(f"other-{k}") for k in range(OTHERS))]
    for _ in range(episodes):
        one = drawn(hints, tallies, rng)
        if one is None:
            continue
        shown, is_planted = rng.random() < SHOWN, one.hint.id == "planted"
        gain = rng.gauss(0.05, noise) + (effect if shown and is_planted else 0.0)
        before = tallies.get((one.hint.id, ARM, shown), Tally(0, 0.0))
        tallies[one.hint.id, ARM, shown] = Tally(before.number + 1, before.total + gain)
        if is_planted and shown:
            means = [worth(hint, ARM, tallies)[0] for hint in hints]
            yield 1 + sum(mean > means[0] for mean in means[1:])


def share(case: str, noise: float, seeds: int) -> float:
    """Of the seeds, those for which the planted hint is judged in time."""
    given = CASES[case]
    median = 1 + OTHERS // 2
    found = 0
    for seed in range(seeds):
        ranks = islice(simulated(seed, given["confidence"], given["effect"], noise), int(given["uses"]))
        found += any(rank > median if case == "bad" else rank == 1 for rank in ranks)
    return found / seeds


def main() -> None:
    """Command line."""
    from evaluator_repeatability import keep
    from search_overhead import summary

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    rows = [
        {"case": case, "noise": noise, "seeds": args.seeds, "share": share(case, noise, args.seeds)}
        for case in CASES
        for noise in (0.1, 0.2)
    ]
    for row in rows:
        print(row)
    print(keep("hint-simulation", "cpu", args.out, summary({"cases": CASES, "rows": rows})))


if __name__ == "__main__":
    main()
