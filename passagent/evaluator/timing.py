"""Time a candidate against eager: blocks of both sides in turn, medians, and the clock audit.

PassBench's protocol (25 warm-ups, 100 trials, medians, the compiled side first, an interquartile range over
20% of the median measured again), with the trials of the two sides taken in alternating blocks so that a
drift of the machine meets both. The input values change between blocks behind the same addresses, blocks
have secret lengths, and after some of them the last call's outputs are verified or a further call is made
under the dispatch guard: a candidate cannot tell a timed call from a checked one.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from passagent.config import EvaluatorConfig
from passagent.evaluator.process import Answer

MIN_TRIALS = 10
_BLOCKS = 6
_PROBE_CALLS = 3
_CLOCK_TOLERANCE = 1.3
_CLOCK_SLACK_NS = 150_000
_CLOCK_ROUNDS = 3
"""Measurements in a row that must disagree before a candidate is refused for it."""
_WARMUP_SHARE = 0.25
"""Share of the time budget that warm-ups may take when calls are slow."""


@dataclass
class Samples:
    """Raw times of one side, ns."""

    e2e: list[int] = field(default_factory=list)
    device: list[int] = field(default_factory=list)
    blocks: list[tuple[int, int]] = field(default_factory=list)
    """For each block the referee's clock, and what the side's own times account for, ns."""

    def add(self, answer: Answer) -> None:
        times = answer.message["samples"]
        own = [int(n) for n in times["e2e"]]
        self.e2e += own
        self.device += [int(n) for n in times["device"]]
        runs = 2 if times["device"] else 1  # with device times every trial runs twice, once for each clock
        self.blocks.append((answer.clock_ns or 0, runs * sum(own)))


@dataclass(frozen=True)
class Timing:
    """Both sides of one subgraph."""

    eager: Samples
    compiled: Samples
    unstable: bool
    clock_disagrees: bool
    """The candidate's times do not account for what the referee's clock saw, in any measurement made."""


class Side(Protocol):
    """A worker that holds the subgraph."""

    def ask(self, message: dict[str, Any], timeout_s: float) -> Answer:
        """Send a `run` request and wait for its reply."""
        ...


Verify = Callable[[int, dict[str, Any]], None]
"""Judge the outputs of a timed or audited call: (input set, worker's reply)."""


def relative_iqr(samples: Sequence[int]) -> float:
    """Interquartile range / median."""
    low, middle, high = np.percentile(samples, [25, 50, 75])
    return float((high - low) / middle)


def measure(
    candidate: Side,
    baseline: Side,
    sets: int,
    restore: list[int],
    verify: Verify,
    config: EvaluatorConfig,
) -> Timing:
    """Time both workers on the subgraph they hold; `sets` input sets are drawn from, `restore` as in `run`.

    Raises WorkerDied and WorkerTimeout of the candidate, TimedCallError, and what `verify` raises.
    """
    probe = _ask(baseline, 0, _PROBE_CALLS, restore, config)
    per_call_s = max(float(np.median(probe.message["samples"]["e2e"])) / 1e9, 1e-7)
    trials = int(min(config.trials, max(MIN_TRIALS, config.budget_s / per_call_s)))
    warmups = int(min(config.warmups, max(2, config.budget_s * _WARMUP_SHARE / per_call_s)))
    for worker in (candidate, baseline):
        _ask(worker, 0, warmups, restore, config)
    best: Timing | None = None
    for attempt in range(max(config.remeasure + 1, _CLOCK_ROUNDS)):
        timing = _measure_once(candidate, baseline, sets, restore, verify, trials, config)
        if not timing.clock_disagrees and (best is None or _spread(timing) < _spread(best)):
            best = timing
        if best is not None and (not best.unstable or attempt >= config.remeasure):
            return best
    return best if best is not None else timing


def _measure_once(
    candidate: Side,
    baseline: Side,
    sets: int,
    restore: list[int],
    verify: Verify,
    trials: int,
    config: EvaluatorConfig,
) -> Timing:
    eager, compiled = Samples(), Samples()
    for number, calls in enumerate(_block_lengths(trials)):
        chosen = secrets.randbelow(sets)
        for side in (candidate, baseline) if number % 2 == 0 else (baseline, candidate):
            if side is baseline:
                eager.add(_ask(baseline, chosen, calls, restore, config))
                continue
            checked = secrets.randbelow(3) == 0
            answer = _ask(candidate, chosen, calls, restore, config, outputs=checked)
            compiled.add(answer)
            if checked:
                verify(chosen, answer.message)
            if secrets.randbelow(5) == 0:
                other = secrets.randbelow(sets)
                request = run_request(other, 1, restore, guard=True, timed=False, outputs=True)
                verify(other, candidate.ask(request, config.timeout_s).message)
    unstable = max(relative_iqr(eager.e2e), relative_iqr(compiled.e2e)) > config.unstable_iqr
    return Timing(eager, compiled, unstable, not clocks_agree(eager, compiled))


def clocks_agree(eager: Samples, compiled: Samples) -> bool:
    """The clock audit (DESIGN 4): the candidate's own times must account for what the referee's clock saw.

    The baseline, timed by the same code in turn, tells what the harness itself costs between the marks.
    The best block of each side counts: a machine disturbs some blocks, hidden time is in all of them.
    """
    harness = max(0, min(clock - own for clock, own in eager.blocks))
    hidden = min(clock - _CLOCK_TOLERANCE * own for clock, own in compiled.blocks)
    return hidden <= harness + _CLOCK_SLACK_NS


def run_request(
    chosen: int,
    calls: int,
    restore: list[int],
    *,
    guard: bool = False,
    timed: bool = False,
    outputs: bool = False,
    inputs_after: bool = False,
) -> dict[str, Any]:
    """The worker's `run` request."""
    return {
        "op": "run",
        "set": chosen,
        "calls": calls,
        "restore": restore,
        "guard": guard,
        "timed": timed,
        "outputs": outputs,
        "inputs_after": inputs_after,
    }


def _ask(
    worker: Side,
    chosen: int,
    calls: int,
    restore: list[int],
    config: EvaluatorConfig,
    outputs: bool = False,
) -> Answer:
    request = run_request(chosen, calls, restore, guard=False, timed=True, outputs=outputs)
    answer = worker.ask(request, config.timeout_s)
    if "error" in answer.message:
        raise TimedCallError(answer.message["error"])
    if len(answer.message["samples"]["e2e"]) != calls:
        raise TimedCallError(
            {"kind": "runtime_error", "message": "a timed block came back with calls missing"}
        )
    return answer


class TimedCallError(Exception):
    """A timed call raised; `error` is the worker's explanation."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(error["message"])
        self.error = error


def _block_lengths(trials: int) -> list[int]:
    """`trials` split in a few blocks of unpredictable length, none much longer than another."""
    if trials < 4 * _BLOCKS:
        return [2] * (trials // 2) + [1] * (trials % 2)
    even = trials / _BLOCKS
    cuts = [round(even * (k + secrets.randbelow(400) / 1000 - 0.2)) for k in range(1, _BLOCKS)]
    return [b - a for a, b in zip([0, *cuts], [*cuts, trials], strict=True)]


def _spread(timing: Timing) -> float:
    return max(relative_iqr(timing.eager.e2e), relative_iqr(timing.compiled.e2e))
