"""The clock audit: a candidate's own times must account for the time that another's clock saw.

Eager's block beside a candidate's, timed by the same code with the same values, tells what the harness itself
takes between the marks. What is beyond that, and beyond some slack, is hidden time, or a machine that had
other things to do: where workers take turns, the time until a core is free for the next one looks like the
candidate's, and a referee that wakes up late sees too little of eager's. In blocks of either side alone, on
one core, that begin when the referee's clock runs, a machine disturbs both alike; so these decide. The longer
one loses its core more often, and waking up takes its time: what a worker waited for a core, as the kernel
says, is not held against it.

Native code of a candidate may leave its work to the moment when outputs are copied, after its clock has
stopped. Copying eager's outputs, which are the same, tells what that takes; the rest is charged to the call.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import chain
from statistics import median

import numpy as np

from passagent.evaluator.result import Measured, Violation
from passagent.evaluator.runner.samples import Samples

BLOCK_S = 0.002
"""About the time of eager's calls of such a block, s: less than other processes leave a core for, also on a
busy machine, and more than waking up a worker takes, a tenth of a millisecond to four."""
_MOST_CALLS = 64
"""The most calls of such a block: a candidate may get slower from call to call."""
_HIDES = 0.75
"""The least share of the telling pairs of blocks in which a candidate that hides time shows it, while a
machine disturbs others; where it hides nothing either side shows as much."""
_NAMED, _CLEARED = 4e-5, 0.02
"""Chances of naming one that hides nothing, and of clearing one that does: they say how many pairs are made
(Wald's sequential test, 1945)."""
MOST_PAIRS = 160
"""Pairs of blocks at most: a machine that disturbs nearly all tells nothing."""
_SHARE = 0.1
_NS_PER_CALL = 5_000
_FLOOR_NS = 20_000
"""The allowed difference of the clocks: a share of the time, ns a call, and ns a block."""
_REFRESH, _OWN = 0.5, 0.25
"""Where eager works in place: this share of the harness's time, or of eager's own. What is written before
a call is still in its caches then, and not in those of a candidate that writes elsewhere."""


def block_length(eager: Samples) -> int:
    """Calls of such a block, by what eager's took between them, too."""
    each = [(sum(b) + max(n, 0)) / len(b) for b, n in zip(eager.blocks, eager.hidden, strict=True)]
    return max(1, min(_MOST_CALLS, round(BLOCK_S * 1e9 / median(each))))


def suspicious(eager: Samples, compiled: Samples, in_place: bool = False) -> bool:
    """Tell whether time is hidden in most blocks, of those of which the other clock saw the whole.

    `in_place`: eager writes into its inputs.
    """
    verdicts = [
        mine - max(theirs, 0) > _slack(theirs, eager_block, block, in_place)
        for theirs, mine, eager_block, block in zip(
            eager.hidden, compiled.hidden, eager.blocks, compiled.blocks, strict=True
        )
        if min(theirs, mine) >= 0
    ]
    return not verdicts or 2 * sum(verdicts) > len(verdicts)


def hides_time(pair: Callable[[Samples, Samples], None], in_place: bool = False) -> Measured | None:
    """The hidden time, if it is in so many pairs of blocks that it is the candidate's doing.

    `pair` adds one to eager's samples and to the candidate's. The figures are us a call, each the median over
    the pairs that show hidden time.
    """
    eager, compiled = Samples(), Samples()
    evidence, pairs = 0.0, []
    for _ in range(MOST_PAIRS):
        pair(eager, compiled)
        shows = _shows(eager, compiled, in_place)
        if shows is not None:
            evidence += math.log((_HIDES if shows else 1 - _HIDES) / 0.5)
        if shows:
            pairs.append(_figures(eager, compiled, in_place))
        if evidence >= -math.log(_NAMED):
            claimed, observed, bound = (median(figures) for figures in zip(*pairs, strict=True))
            return Measured(claimed=claimed, seen=observed, bound=bound, unit="us a call")
        if evidence <= math.log(_CLEARED):
            return None
    return None


def refusal(hidden: Measured) -> Violation:
    """The violation of a candidate whose clock left this out, in two measurements."""
    message = (
        f"its own clock says {hidden.claimed:.4g} us a call; another clock saw {hidden.seen:.4g} us, and at "
        f"most {hidden.bound:.4g} us can be explained. Two measurements by separate processes say so: leave "
        "the clock alone. The refusal is not kept: evaluating the pass again measures again"
    )
    return Violation(rule="clock", file="", line=0, message=message, measured=hidden)


def _shows(eager: Samples, compiled: Samples, in_place: bool) -> bool | None:
    """Tell whether the last pair shows hidden time; None if that is not clear."""
    theirs, mine, its, own_wait = eager.hidden[-1], compiled.hidden[-1], eager.waited[-1], compiled.waited[-1]
    slack = _slack(theirs, eager.blocks[-1], compiled.blocks[-1], in_place)
    # As if all the waiting had been between its calls, it still leaves time over.
    if mine - max(theirs, 0) - own_wait > slack:
        return True
    # So does eager's, which hides nothing; or neither does, and little was waited for.
    if theirs - max(mine, 0) - its > slack or 2 * max(its, own_wait) < slack:
        return False
    return None


def _figures(eager: Samples, compiled: Samples, in_place: bool) -> tuple[float, float, float]:
    """Figures of the last pair, us a call: the candidate's, the other clock's, the most it may see.

    What the harness takes beside eager's block, and what the worker waited for its core, is left out.
    """
    block, theirs = compiled.blocks[-1], eager.hidden[-1]
    beyond = compiled.hidden[-1] - max(theirs, 0) - compiled.waited[-1]
    slack = _slack(theirs, eager.blocks[-1], block, in_place)
    return tuple((sum(block) + more) / 1e3 / len(block) for more in (0, beyond, slack))  # type: ignore[return-value]


def _slack(theirs: int, eager_block: list[int], block: list[int], in_place: bool) -> float:
    """The time that the harness may take longer with the candidate's `block` than with `eager_block`, ns.

    `theirs`: what it took there.
    """
    harness = max(theirs, 0)
    caches = min(_REFRESH * harness, _OWN * sum(eager_block)) if in_place else 0.0
    return _SHARE * (sum(block) + harness) + caches + _NS_PER_CALL * len(block) + _FLOOR_NS


_BUSY, _TICKS_NS = 0.1, 10_000_000
"""Processors that a worker may keep busy beyond one for each of its threads, and the time by which the
kernel's count may be late. Of several threads twice as many may be busy: torch and the kernel may have an
OpenMP runtime each, whose threads wait for work in a loop."""


def extra_threads(compiled: Samples, threads: int) -> Measured | None:
    """The processors that the candidate kept busy, by the kernel's count, if more than it has threads."""
    cpu_ns, wall_ns = compiled.busy_ns
    busy = (cpu_ns - _TICKS_NS) / max(1, wall_ns)
    bound = (threads if threads <= 1 else 2 * threads) + _BUSY
    return Measured(claimed=threads, seen=busy, bound=bound, unit="processors") if busy > bound else None


def refusal_of_threads(busy: Measured) -> Violation:
    """The violation of a candidate that ran more threads than eager may, in two measurements."""
    message = (
        f"its calls keep {busy.seen:.3g} processors busy; eager has {busy.claimed:.0f} for its threads. "
        "Two measurements by separate processes say so: start no threads beside OpenMP's, and leave their "
        "number alone. The refusal is not kept: evaluating the pass again measures again"
    )
    return Violation(rule="threads", file="", line=0, message=message, measured=busy)


_SURELY = 3.5
"""Standard deviations by which two shares differ: on a busy machine honest ones differed by up to 2.8."""
_USUAL = 0.9
"""Share of eager's calls whose outputs are copied in what is allowed."""
_SMALL_NS = 10_000
"""Copying takes so long in any process; what goes beyond it in one differed by up to 1.9 times in another."""


def charge_copying(eager: Samples, compiled: Samples) -> None:
    """Where copying surely takes longer than may be, add what is beyond eager's median to each call's time.

    Surely: that is so in a larger share of the candidate's calls than of eager's. So one that leaves work
    undone in a part of its calls shows, too.
    """
    theirs, candidate_times = (np.array(list(chain(*side.copying))) for side in (eager, compiled))
    if not theirs.size or not candidate_times.size:
        return
    usual = round(float(np.median(theirs)))
    allowed = max(float(np.quantile(theirs, _USUAL)), 2 * usual - _SMALL_NS)
    longer = (candidate_times > allowed, theirs > allowed)
    share = float(np.concatenate(longer).mean())
    spread = math.sqrt(share * (1 - share) * (1 / candidate_times.size + 1 / theirs.size))
    if longer[0].mean() - longer[1].mean() <= _SURELY * spread:
        return
    for number, copying in enumerate(compiled.copying):
        beyond = [max(0, copied - usual) for copied in copying]
        compiled.blocks[number] = [sum(both) for both in zip(compiled.blocks[number], beyond, strict=True)]
        compiled.hidden[number] -= sum(beyond)
