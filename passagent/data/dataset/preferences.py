"""Pairs of episodes that began alike, one of which ended clearly better: TRL's preference form."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from passagent.data.dataset.columns import Told
from passagent.data.dataset.example import Example, Turn
from passagent.data.dataset.formats.common import functions
from passagent.data.dataset.formats.trl import message
from passagent.data.dataset.selection import Chosen

FILE = "preferences.jsonl"
_SEED = re.compile(r"^Episode seed: \d+$", re.M)
"""Trials of one task are told nothing else than this line."""


def pairs(chosen: Iterable[Chosen], episodes: Iterable[Told]) -> list[tuple[Chosen, Chosen]]:
    """`(better, worse)`: each group's best of `chosen` with every episode that is worse beyond the intervals.

    A group is of one task, model and start. An episode that left nothing correct is worse than any other.
    """
    groups = dict[tuple[Any, ...], list[Told]]()
    for told in episodes:
        groups.setdefault(told.group, []).append(told)
    best = dict[tuple[Any, ...], Chosen]()
    for one in chosen:
        known = best.get(one.told.group)
        if one.columns["as_score"] is not None and (known is None or _low(one.told) > _low(known.told)):
            best[one.told.group] = one
    return [
        (one, Chosen(other, None, other.columns))
        for group, one in best.items()
        for other in groups[group]
        if other is not one.told and _high(other) < _low(one.told)
    ]


def _low(told: Told) -> float:
    return max((r.low for r in told.revisions if r.status == "ok" and r.low), default=0.0)


def _high(told: Told) -> float:
    return max((r.high for r in told.revisions if r.status == "ok" and r.high), default=0.0)


def row(better: Example, worse: Example) -> dict[str, Any] | None:
    """The pair as TRL takes it; None where the two were not asked the same."""
    begin = next((place for place, turn in enumerate(better.turns) if turn.role == "assistant"), 0)
    if begin == 0 or [_said(t) for t in better.turns[:begin]] != [_said(t) for t in worse.turns[:begin]]:
        return None
    return {
        "id": f"{better.id}>{worse.id}",
        "prompt": [*map(message, better.turns[:begin])],
        "chosen": [*map(message, better.turns[begin:])],
        "rejected": [*map(message, worse.turns[begin:])],
        "tools": functions(better),
        "chosen_as": better.columns["as_score"],
        "rejected_as": worse.columns["as_score"],
        "model": better.columns["model"],
        "task": better.columns["task"],
    }


def _said(turn: Turn) -> tuple[str, str]:
    return turn.role, _SEED.sub("", turn.content)
