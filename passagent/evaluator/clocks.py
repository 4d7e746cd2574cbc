"""The clock audit (DESIGN 4): a candidate's own times must account for the time that another's clock saw.

Eager's block beside a candidate's, timed by the same code with the same values, tells what the harness itself
takes between the marks. What is beyond that, and beyond some slack, is hidden time, or a machine that had
other things to do: where workers take turns, the time until a core is free for the next one looks like the
candidate's, and a referee that wakes up late sees too little of eager's. In blocks of either side alone, on
one core, that begin when the referee's clock runs, a machine disturbs both alike; so these decide. The longer
one loses its core more often, and waking up takes its time: what a worker waited for a core, as the kernel
says, is not held against it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from statistics import median

from passagent.evaluator.samples import Samples

BLOCK_S = 0.002
"""What eager's calls of such a block take, about, s: less than other processes leave a core for, also on a
busy machine, and more than waking up a worker takes, a tenth of a millisecond to four."""
_MOST_CALLS = 64
"""Of such a block: a candidate that gets slower from call to call is not asked for thousands."""
BLOCKS, HIDING, ROUNDS = 20, 16, 2
"""Time is hidden by the candidate if it is in HIDING pairs of BLOCKS, ROUNDS times in a row: where a machine
disturbs either side as likely, 4 measurements in 100,000 would show as many."""
PATIENCE = 4
"""So many times BLOCKS pairs are made at most: a machine that disturbs nearly all tells nothing."""
_SHARE = 0.1
_NS_PER_CALL = 5_000
_FLOOR_NS = 20_000
"""What the clocks may differ by: a share of the time, ns a call, and ns a block for its two messages."""
_REFRESH, _OWN = 0.5, 0.25
"""Where eager works in place: this share of the harness's time, or of eager's own. What is written before
a call is still in its caches then, and not in those of a candidate that writes elsewhere."""


def block_length(eager: Samples) -> int:
    """Calls of such a block, by what eager's took between them, too."""
    each = [(sum(b) + max(n, 0)) / len(b) for b, n in zip(eager.blocks, eager.hidden, strict=True)]
    return max(1, min(_MOST_CALLS, round(BLOCK_S * 1e9 / median(each))))


def suspicious(eager: Samples, compiled: Samples, in_place: bool = False) -> bool:
    """Whether time is hidden in most blocks, of those of which the other clock saw the whole.

    `in_place`: eager writes into its inputs.
    """
    found = [
        mine - max(theirs, 0) > slack
        for theirs, mine, slack in zip(
            eager.hidden, compiled.hidden, _slacks(eager, compiled, in_place), strict=True
        )
        if min(theirs, mine) >= 0
    ]
    return not found or 2 * sum(found) > len(found)


def hides_time(pair: Callable[[Samples, Samples], None], in_place: bool = False) -> bool:
    """Whether time is hidden in so many pairs of blocks that it is the candidate's doing.

    `pair` adds one to eager's samples and to the candidate's.
    """
    return all(_hides(pair, in_place) for _ in range(ROUNDS))


def _hides(pair: Callable[[Samples, Samples], None], in_place: bool) -> bool:
    eager, compiled = Samples(), Samples()
    for _ in range(PATIENCE * BLOCKS):
        pair(eager, compiled)
        slacks = list(_slacks(eager, compiled, in_place))
        over = [mine - max(theirs, 0) for theirs, mine in zip(eager.hidden, compiled.hidden, strict=True)]
        waits = list(zip(eager.waited, compiled.waited, strict=True))
        # As if all the waiting had been between its calls, it still leaves time over; or there was little.
        hiding = [n - own > slack for n, (_, own), slack in zip(over, waits, slacks, strict=True)]
        calm = [2 * max(both) < slack for both, slack in zip(waits, slacks, strict=True)]
        if sum(hiding) >= HIDING:
            return True
        if sum(quiet and not found for found, quiet in zip(hiding, calm, strict=True)) > BLOCKS - HIDING:
            return False
    return False


def _slacks(eager: Samples, compiled: Samples, in_place: bool) -> Iterator[float]:
    """Of each pair of blocks what the harness may take longer beside the candidate, ns."""
    for theirs, block, own in zip(eager.hidden, compiled.blocks, eager.blocks, strict=True):
        harness = max(theirs, 0)
        caches = min(_REFRESH * harness, _OWN * sum(own)) if in_place else 0.0
        yield _SHARE * (sum(block) + harness) + caches + _NS_PER_CALL * len(block) + _FLOOR_NS
