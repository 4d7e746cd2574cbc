"""Time a candidate against eager: pairs of calls of both sides, until the interval of the ratio is narrow.

Every call gets fresh values (runner/fresh.py), the same for both sides of a pair. Of calls chosen at random
the outputs are compared with eager's on the very same values. So a candidate cannot tell a timed call from a
checked one, and what it kept from another call is wrong. On a GPU the two workers take turns of a few calls,
both on one core and on another one every few turns (runner/lockstep.py); on the CPU, where a call takes all
cores, they take turns in short blocks. Workers take the times, and clocks.py holds them against the clock of
the other side. estimate.py makes the speedup and its interval of them, `together` averages pairs of workers.
"""

from __future__ import annotations

import math
import os
import secrets
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from passagent.errors import InfrastructureError
from passagent.evaluator.reference.reference import Reference, run_request
from passagent.evaluator.runner.fresh import Draw, Windows
from passagent.evaluator.runner.lockstep import Turn
from passagent.evaluator.runner.process import WorkerAnswer
from passagent.evaluator.runner.samples import Samples, Timing
from passagent.evaluator.runner.worker_messages import (
    Error,
    Kept,
    Lockstep,
    LockstepReply,
    R,
    Request,
    Run,
    RunReply,
    Turns,
)
from passagent.evaluator.score import SETS
from passagent.evaluator.timing import clocks, estimate, turns
from passagent.evaluator.timing.estimate import Effort

WARMUPS = 25
"""Calls before timing starts, each side."""
UNSTABLE = 0.05
"""A subgraph whose interval stays wider than this (half its width, relative) is marked unstable."""
MIN_PAIRS = 6
"""Pairs of blocks of a measurement, at least."""
SLOW_S = 0.5
"""From here on a call is slow: either side makes six at most in both pairs of workers of an evaluation."""
SLOW_PAIRS = 3
"""MIN_PAIRS of slow calls; one less where calls that are not counted were slow already."""
BLOCK = 10
"""Calls of a block, on average; slow calls come in shorter blocks."""
WIDE = 2
"""Once its budget is spent, an interval may be so many times as wide as it should be."""
_PROBE_CALLS = 3
"""Calls of eager that tell how long a call takes."""
_AGAIN = 2
"""Calls that do not count, of each side, after another program had the device."""
_VERIFIED = 0.3
"""Share of the candidate's blocks of which one call's outputs are compared; of the first MIN_PAIRS one is in
any case, as there are no more where calls are slow."""
_GRACE_S = 10.0
"""How long eager's worker may take to notice that its partner is gone, s."""
_ENDED_EARLY = Error(kind="runtime_error", message="timed calls ended early, without an answer")
BETWEEN_WORKERS = 0.006
"""Standard deviation of the log ratio of eager to itself in one pair of workers: two pairs, and the noise
of the calls themselves, gave 0.47% in benchmarks/evaluator_repeatability.py on an H200."""
BELIEF = 2
"""BETWEEN_WORKERS counts as much as what so many more pairs show: where pairs differ further, as those of
calls of 3 us in a CUDA graph do, the interval is as wide as they say."""


class Side(Protocol):
    """A worker that holds the subgraph."""

    overhead_ns: int
    """The host's part of each of its times, which does not count."""

    def ask(self, request: Request[R], timeout_s: float, fds: tuple[int, ...] = ()) -> WorkerAnswer[R]:
        """Send a request, and descriptors beside, and wait for its reply."""
        ...

    def paused(self) -> AbstractContextManager[None]:
        """Have every thread of the worker stand still inside the block."""
        ...


Verify = Callable[[int, Windows, Kept], None]
"""Judge a timed call: (input set, windows, what the worker kept of it)."""
Share = Callable[[], float]
"""Let another program time, if one waits; for how long it did, s (DeviceLease.exclusive)."""


class TimedCallError(Exception):
    """A timed call raised; `error` is the worker's explanation."""

    def __init__(self, error: Error) -> None:
        super().__init__(error.message)
        self.error = error


@dataclass(frozen=True)
class TimedPair:
    """Two workers that hold the subgraph of `reference`, and the check and limits of their timing."""

    candidate: Side
    baseline: Side
    reference: Reference
    verify: Verify
    effort: Effort
    share: Share = lambda: 0.0
    """Lets others time meanwhile, which is in no budget."""


def measure(pair: TimedPair) -> Timing:
    """Time both workers of the pair.

    Raises WorkerDied and WorkerTimeout of the candidate, TimedCallError, and what `verify` does.
    """
    candidate, baseline, reference, effort = pair.candidate, pair.baseline, pair.reference, pair.effort
    draw = Draw(reference.rotation)
    per_call_s = reference.call_s
    for side, calls in ((baseline, _PROBE_CALLS), (candidate, 1)) if per_call_s < SLOW_S else ():
        first, *probed = [draw.next() for _ in range(1 + calls)]
        probe = _block(pair, side, run_request(reference, 1, probed, settle=first))
        took_s = max(float(np.median(probe.reply.samples)) / 1e9, 1e-7)
        per_call_s = took_s if side is baseline else max(per_call_s, took_s)
    warmups = int(min(WARMUPS, max(2, effort.budget_s / 4 / per_call_s)))
    if per_call_s < SLOW_S:
        for side in (candidate, baseline):
            first, *warming = [draw.next() for _ in range(1 + warmups)]
            _block(pair, side, run_request(reference, 1, warming, settle=first))
    if effort.device == "cpu":
        timing = _blocks(replace(pair, effort=replace(effort, patience=1)), draw, per_call_s)
    else:
        timing = _groups(pair, draw, per_call_s)
    timing.is_slow = per_call_s >= SLOW_S
    clocks.charge_copying(timing.eager, timing.compiled)
    logs = estimate.log_ratios(timing.eager.counted, timing.compiled.counted)
    timing.speedup, (timing.low, timing.high) = estimate.ratio(logs), estimate.interval(logs)
    timing.pairs = [len(logs)]
    in_place = bool(reference.mutated)
    if clocks.suspicious(timing.eager, timing.compiled, in_place):
        calls = clocks.block_length(timing.eager)

        def clocked_pair(eager: Samples, compiled: Samples) -> None:
            chosen = 1 + secrets.randbelow(SETS - 1)
            values = turns.windows(draw, reference, calls)
            core = secrets.choice(sorted(os.sched_getaffinity(0)))  # one may be slower than another
            sides = [(candidate, compiled), (baseline, eager)]
            for side, samples in sides[:: secrets.choice((1, -1))]:
                samples.add(_block(pair, side, run_request(reference, chosen, values, core=core)))
            pair.share()

        timing.hidden = clocks.hides_time(clocked_pair, in_place)
    return timing


def _begin(pair: TimedPair) -> Timing:
    calls, sides = max(1, pair.reference.repeats), (pair.baseline, pair.candidate)
    eager, compiled = (Samples(calls=calls, overhead_ns=side.overhead_ns) for side in sides)
    return Timing(eager, compiled)


def _blocks(pair: TimedPair, draw: Draw, per_call_s: float) -> Timing:
    candidate, baseline, reference = pair.candidate, pair.baseline, pair.reference
    timing = _begin(pair)
    begun, fewest, is_slow = time.monotonic(), _fewest(per_call_s, reference), per_call_s >= SLOW_S
    surely = secrets.randbelow(fewest)
    while True:
        number = len(timing.eager.blocks)
        calls = _block_length(per_call_s)
        chosen = 1 + secrets.randbelow(SETS - 1)
        # No timed call has values that an unmeasured one had.
        before, *windows = turns.windows(draw, reference, 1 + calls)
        settle = before if per_call_s < turns.BLOCK_S else None  # beside longer calls caches do not matter
        verified = number == surely or (not is_slow and secrets.randbelow(1000) < 1000 * _VERIFIED)
        if verified:  # the block ends with that call: what comes after it may know that nobody looks any more
            windows = windows[: 1 + secrets.randbelow(len(windows))]
        for side in (candidate, baseline) if number % 2 == 0 else (baseline, candidate):
            request = run_request(reference, chosen, windows, keep=True, settle=settle)
            answer = _block(pair, side, request)
            (timing.eager if side is baseline else timing.compiled).add(answer)
            if side is candidate:
                returned = answer.reply.returned
        if verified:
            pair.verify(chosen, windows[-1], returned)
        if number + 1 >= fewest and (is_slow or _enough(timing, pair, begun)):
            return timing
        if shared := pair.share():
            for side in () if is_slow else (candidate, baseline):  # others have used the caches
                again = [draw.next() for _ in range(min(calls, _AGAIN))]
                _block(pair, side, run_request(reference, chosen, again))
            begun += shared


def _fewest(per_call_s: float, reference: Reference) -> int:
    """Pairs of blocks, at least; of slow calls, which are one a block, there are no more."""
    return MIN_PAIRS if per_call_s < SLOW_S else SLOW_PAIRS - (reference.call_s < SLOW_S)


def _block_length(per_call_s: float) -> int:
    """Calls of the next block, by chance."""
    length = max(1, min(BLOCK, round(turns.BLOCK_S / per_call_s)))
    return max(1, length + secrets.randbelow(2 * (length // 3) + 1) - length // 3)


def _groups(pair: TimedPair, draw: Draw, per_call_s: float) -> Timing:
    reference = pair.reference
    # Young processes are slower at first, and after others: where calls are short, a short series warms up,
    # whose times do not count and whose outputs nobody looks at.
    timing, begun = _begin(pair), time.monotonic()
    is_warm = per_call_s >= turns.LONG_CALL_S
    is_slow = per_call_s >= SLOW_S
    is_brief = pair.effort.is_brief and reference.repeats > 1
    in_budget = turns.groups_in(pair.effort.budget_s / 2, per_call_s, is_brief)
    lengths = turns.lengths(per_call_s, is_brief)
    most = _fewest(per_call_s, reference) if is_slow else in_budget
    cores: list[int] = []
    while True:
        groups: list[Turns] = []
        series = time.monotonic()
        count = most - secrets.randbelow(most // 2)
        if not is_warm:
            count = min(count, turns.WARMING)
        verified = secrets.SystemRandom().sample(range(count), turns.KEPT if is_warm else 0)
        for number in range(count):
            if not cores:
                cores = sorted(os.sched_getaffinity(0))
                secrets.SystemRandom().shuffle(cores)
            is_verified = number in verified
            groups.append(turns.group(draw, reference, lengths, cores.pop(), is_verified))
        answer = _in_turn(pair, groups, timing if is_warm else Timing())
        checked = [(group, group.keep) for group in groups if group.keep is not None]
        for (group, (place, position)), kept_call in zip(checked, answer.reply.kept, strict=True):
            pair.verify(group.set, group.turns[place][position], kept_call)
        if not is_warm:  # what is timed now may follow at once
            is_warm, begun = True, begun + time.monotonic() - series
            continue
        if is_slow or _enough(timing, pair, begun):
            return timing
        if shared := pair.share():
            is_warm, begun = per_call_s >= turns.LONG_CALL_S, begun + shared


def _in_turn(pair: TimedPair, groups: list[Turns], timing: Timing) -> WorkerAnswer[LockstepReply]:
    """Have both workers make the calls of `groups` in turn; adds the times. The candidate's answer."""
    timeout_s, reference = pair.effort.timeout_s, pair.reference
    mine = Lockstep(id=reference.name, groups=groups, often=reference.often, side=1)
    unkept = [group.model_copy(update={"keep": None}) for group in groups]
    theirs = mine.model_copy(update={"groups": unkept, "side": 0})
    fd = Turn.create()
    turn = Turn(os.dup(fd))
    try:
        with ThreadPoolExecutor(1) as thread:
            # It gets longer: it ends when the candidate does not come any more, and is not lost for that.
            patience_s = timeout_s + _GRACE_S
            waiting = thread.submit(pair.baseline.ask, theirs, patience_s, (fd,))
            # A side need not wait for one that does not come any more.
            waiting.add_done_callback(lambda done: turn.abort() if done.exception() else None)
            try:
                answer = pair.candidate.ask(mine, timeout_s, (fd,))
                if answer.error is not None or answer.reply.ended_early:
                    raise TimedCallError(answer.error or _ENDED_EARLY)
            except BaseException:
                turn.abort()
                lost = waiting.exception()
                if isinstance(lost, InfrastructureError):
                    raise lost from None  # not the candidate's fault
                raise
            eager = waiting.result().reply
    finally:
        turn.close()
        os.close(fd)
    if eager.ended_early:
        raise TimedCallError(_ENDED_EARLY)
    for group, other, group_reply in zip(groups, eager.groups, answer.reply.groups, strict=True):
        for side, times, clock in (
            (timing.eager, other.samples, other.held),
            (timing.compiled, group_reply.samples, other.without),
        ):
            side.blocks.append(turns.measured(times, group))
            side.hidden.append(clock - sum(times))
    return answer


def _enough(timing: Timing, pair: TimedPair, begun: float) -> bool:
    """Tell whether the interval is narrow; past the budget it may be wider, past `patience` budgets as it
    is."""
    effort, trials = pair.effort, sum(map(len, timing.compiled.blocks))
    budgets = (time.monotonic() - begun) / effort.budget_s
    if trials >= effort.most_trials or budgets > effort.patience:
        return True
    if budgets <= 1 and trials < effort.trials:
        return False
    low, high = estimate.interval(estimate.log_ratios(timing.eager.counted, timing.compiled.counted))
    return math.log(high / low) / 2 <= effort.interval * (1 if budgets <= 1 else WIDE)


def together(timings: Sequence[Timing]) -> Timing:
    """The measurements of several pairs of workers as one: their mean, in logarithms, and its interval.

    The interval is wider by what pairs with the same graphs differ by: calls of one pair do not show it.
    """
    count = len(timings)
    whole = Timing()
    for timing in timings:
        for side, part in ((whole.eager, timing.eager), (whole.compiled, timing.compiled)):
            side.blocks += part.counted
            side.hidden += part.hidden
        whole.pairs += timing.pairs
    whole.eager_ns = estimate.typical_ns(whole.eager.blocks)
    speedups = [math.log(timing.speedup) for timing in timings]
    centre = sum(speedups) / count
    seen = sum((speedup - centre) ** 2 for speedup in speedups)
    variance = (BELIEF * BETWEEN_WORKERS**2 + seen) / (BELIEF + count - 1)
    between = 1.96 * math.sqrt(variance / count)
    down = math.hypot(*(math.log(timing.speedup / timing.low) / count for timing in timings), between)
    up = math.hypot(*(math.log(timing.high / timing.speedup) / count for timing in timings), between)
    whole.speedup, whole.low, whole.high = (math.exp(x) for x in (centre, centre - down, centre + up))
    whole.unstable = (down + up) / 2 > UNSTABLE
    return whole


def _block(pair: TimedPair, side: Side, request: Run) -> WorkerAnswer[RunReply]:
    other = pair.candidate if side is pair.baseline else pair.baseline
    # On the CPU what runs on after a call takes no time of the other side's.
    with other.paused() if pair.effort.device == "cpu" else nullcontext():
        answer = side.ask(request, pair.effort.timeout_s)
    if answer.error is not None:
        raise TimedCallError(answer.error)
    return answer
