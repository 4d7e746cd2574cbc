"""Plan the calls that both sides make in turn on a GPU: turns of calls, groups of turns on a core, series."""

from __future__ import annotations

import secrets

from passagent.evaluator.reference.reference import Reference
from passagent.evaluator.runner.fresh import Draw, Windows
from passagent.evaluator.runner.worker_messages import Turns
from passagent.evaluator.score import SETS

TURNS = 4
"""Turns of either side on one core, before the workers move to another: an even number."""
MEASURED = 6
"""Calls of a turn that are measured; of brief turns one."""
COLD = 1
"""Calls of a turn that are not: the first finds the caches as the other side left them."""
COLDER = 3
"""The unmeasured calls of the first turn on a core; of brief turns COLD."""
LONG_CALL_S = 0.001
"""From here on caches do not matter, and a turn is one call."""
SERIES = 16
"""Groups that are asked for at once, a series, at most: what is done between two is time without samples."""
WARMING = 6
"""Groups of the first series, whose times do not count."""
FEWEST = 3
"""The fewest groups of a series."""
KEPT = 2
"""One call in so many groups of a series is verified; the outputs' arena has room for SETS calls."""
BLOCK_S = 0.05
"""The time that a side's calls of a block or group may take, s."""
REFRESH_S = 0.0001
"""About the time of giving the inputs new values before a call, s."""


def groups_in(seconds: float, per_call_s: float, is_brief: bool) -> int:
    """How many groups of both sides' calls fit into a time, FEWEST to SERIES."""
    counts, _ = lengths(per_call_s, is_brief)
    group_s = 2 * sum(counts) * (per_call_s + REFRESH_S)
    return max(FEWEST, min(SERIES, int(seconds / group_s)))


def lengths(per_call_s: float, is_brief: bool) -> tuple[list[int], list[int]]:
    """The calls of a side's turns on one core, and how many of them go unmeasured.

    Turns may be brief where a call is the replay of many: what it finds in caches matters less.
    """
    if per_call_s < LONG_CALL_S:
        colder, measured = (COLDER, MEASURED) if not is_brief else (COLD, 1)
        skips = [colder] + [COLD] * (TURNS - 1)
        return [skip + measured for skip in skips], skips
    count = max(2, min(TURNS, 2 * round(BLOCK_S / per_call_s / 2))) if per_call_s < 10 * BLOCK_S else 1
    return [1] * count, [0] * count


def group(
    draw: Draw,
    reference: Reference,
    lengths_of_turns: tuple[list[int], list[int]],
    core: int,
    is_verified: bool,
) -> Turns:
    """The calls of either side on one core: the windows of its turns, and how many go unmeasured."""
    counts, skips = [*lengths_of_turns[0]], lengths_of_turns[1]
    keep = None
    if is_verified:
        place = secrets.randbelow(len(counts))
        keep = (place, skips[place] + secrets.randbelow(counts[place] - skips[place]))
        counts[place] = keep[1] + 1  # the turn ends with it: what comes after finds another state
    calls = windows(draw, reference, sum(counts))
    turns = [calls[sum(counts[:i]) : sum(counts[: i + 1])] for i in range(len(counts))]
    chosen = 1 + secrets.randbelow(SETS - 1)
    first = secrets.randbelow(2)
    return Turns(first=first, set=chosen, turns=turns, skips=skips, keep=keep, core=core)


def measured(times: list[int], group: Turns) -> list[int]:
    """The times without those of each turn's first calls."""
    remaining = iter(times)
    turns = [[next(remaining) for _ in turn] for turn in group.turns]
    return [n for turn, skip in zip(turns, group.skips, strict=True) for n in turn[skip:]]


def windows(draw: Draw, reference: Reference, calls: int) -> list[Windows]:
    """Windows for a block's calls; those of inputs that are refreshed once a block stay."""
    first = draw.next()
    later = [draw.next() for _ in range(calls - 1)]
    return [first, *([w if i in reference.often else first[i] for i, w in enumerate(turn)] for turn in later)]
