"""The clock audit (DESIGN 4): a candidate's own times must account for the time that another's clock saw.

Eager's block beside a candidate's, timed by the same code with the same values, tells what the harness itself
takes between the marks. What is beyond that, and beyond some slack, is hidden time, or a machine that had
other things to do: where workers take turns, the time until a core is free for the next one looks like the
candidate's, and a referee that wakes up late sees too little of eager's. In blocks of either side alone, on
one core, that begin when the referee's clock runs, a machine disturbs both alike; so these decide.
"""

from __future__ import annotations

from collections.abc import Callable

from passagent.evaluator.samples import Samples

BLOCK_S = 0.005
"""What a side's calls of such a block take, about, s: waking up a worker takes a tenth of a millisecond."""
BLOCKS, HIDING, ROUNDS = 20, 16, 2
"""Time is hidden by the candidate if it is in HIDING pairs of BLOCKS, ROUNDS times in a row: where a machine
disturbs either side as likely, 4 measurements in 100,000 would show as many."""
_SHARE = 0.1
_NS_PER_CALL = 5_000
_FLOOR_NS = 20_000
"""What the clocks may differ by: a share of the time, ns a call, and ns a block for its two messages."""


def suspicious(eager: Samples, compiled: Samples) -> bool:
    """Whether time is hidden in most blocks, of those of which the other clock saw the whole."""
    seen = zip(_hiding(eager, compiled), eager.hidden, compiled.hidden, strict=True)
    found = [hiding for hiding, theirs, mine in seen if min(theirs, mine) >= 0]
    return not found or 2 * sum(found) > len(found)


def hides_time(pair: Callable[[Samples, Samples], None]) -> bool:
    """Whether time is hidden in so many pairs of blocks that it is the candidate's doing.

    `pair` adds one to eager's samples and to the candidate's.
    """
    return all(_hides(pair) for _ in range(ROUNDS))


def _hides(pair: Callable[[Samples, Samples], None]) -> bool:
    eager, compiled = Samples(), Samples()
    while True:
        pair(eager, compiled)
        found = _hiding(eager, compiled)
        if sum(found) == HIDING:
            return True
        if len(found) - sum(found) > BLOCKS - HIDING:
            return False


def _hiding(eager: Samples, compiled: Samples) -> list[bool]:
    found = []
    for theirs, mine, block in zip(eager.hidden, compiled.hidden, compiled.blocks, strict=True):
        harness = max(theirs, 0)
        slack = _SHARE * (sum(block) + harness) + _NS_PER_CALL * len(block) + _FLOOR_NS
        found.append(mine - harness > slack)
    return found
