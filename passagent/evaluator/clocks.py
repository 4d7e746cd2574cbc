"""The clock audit (DESIGN 4): a candidate's own times must account for the time that another's clock saw.

Eager's block beside a candidate's, timed by the same code with the same values, tells what the harness itself
takes between the marks. What is beyond that, and beyond some slack, is hidden time, or a machine that had
other things to do: where workers take turns, the time until a core is free for the next one looks like the
candidate's, and a referee that wakes up late sees too little of eager's. In blocks of either side alone that
begin when the referee's clock runs, a machine disturbs both alike; so these decide.
"""

from __future__ import annotations

from collections.abc import Callable

from passagent.evaluator.samples import Samples

CONFIRMING = 48
"""Pairs of blocks that decide, at most."""
HIDING = 36
"""Of them those in which time is hidden, from which on it is the candidate's doing: where a machine disturbs
either side as likely, 3 measurements in 10,000 would show as many."""
_SHARE = 0.1
_NS_PER_CALL = 5_000
_FLOOR_NS = 20_000
"""What the clocks may differ by: a share of the time, ns a call, and ns a block for its two messages."""


def suspicious(eager: Samples, compiled: Samples) -> bool:
    """Whether time is hidden in most blocks."""
    found = _hiding(eager, compiled)
    return 2 * sum(found) > len(found)


def hides_time(pair: Callable[[Samples, Samples], None]) -> bool:
    """Whether time is hidden in HIDING of CONFIRMING pairs of blocks.

    `pair` adds one to eager's samples and to the candidate's.
    """
    eager, compiled = Samples(), Samples()
    while True:
        pair(eager, compiled)
        found = _hiding(eager, compiled)
        if sum(found) == HIDING:
            return True
        if len(found) - sum(found) > CONFIRMING - HIDING:
            return False


def _hiding(eager: Samples, compiled: Samples) -> list[bool]:
    found = []
    for theirs, mine, block in zip(eager.hidden, compiled.hidden, compiled.blocks, strict=True):
        harness = max(theirs, 0)
        slack = _SHARE * (sum(block) + harness) + _NS_PER_CALL * len(block) + _FLOOR_NS
        found.append(mine - harness > slack)
    return found
