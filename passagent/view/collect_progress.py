"""Progress of a collection: a line for each trial, and below them, or now and then, one for all."""

from __future__ import annotations

import time
from typing import TextIO

from passagent.data.collect.budget import CollectionBudget
from passagent.data.collect.campaign import Watch
from passagent.data.collect.trials import Outcome, Pair, Summary
from passagent.events import Event, Noted
from passagent.view.collect_table import status_line
from passagent.view.progress import StatusLine
from passagent.view.text import clock, number, thousands, width

_EVERY_S = 30.0
"""Between two lines about all, where there is no terminal, s."""


class CollectProgress(StatusLine, Watch):
    """Progress on a terminal or in a file."""

    def __init__(self, summary: Summary, total: int, stream: TextIO) -> None:
        """`summary` of what was finished before, of `total` trials."""
        super().__init__(stream)
        self.summary, self.total = summary, total
        self._before = summary.runs
        self._started = self._told = time.monotonic()

    def event(self, pair: Pair, event: Event) -> None:
        """See Watch.event."""
        if isinstance(event, Noted):
            self.say(f"{pair}: {event.message}")

    def say(self, text: str) -> None:
        """See Watch.say."""
        self.print(f"        note: {text}")

    def tick(self, budget: CollectionBudget) -> None:
        """See Watch.tick."""
        now = time.monotonic()
        if not self.is_shown and now - self._told < _EVERY_S:
            return
        self._told = now
        spent = budget.progress()
        line = status_line(self.summary, self.total, spent.tokens, spent.cost, self.left_s(budget))
        if self.is_shown:
            self.show(line)
        else:
            self.print(f"[{clock(now - self._started):>5}] {line}")

    def left_s(self, budget: CollectionBudget) -> float | None:
        """How long the rest takes at this pace, at most what the budget leaves, s; None: not known yet."""
        made = self.summary.runs - self._before
        found = []
        if made:
            found.append((time.monotonic() - self._started) / made * (self.total - self.summary.runs))
        if budget.left_s is not None:
            found.append(max(0.0, budget.left_s))
        return min(found, default=None)

    def ended(self, outcome: Outcome, error: str | None) -> None:
        """See Watch.ended. A trial that a person or the budget stopped is not told here."""
        if error is None and not outcome.is_done:
            return
        head = f"{outcome.task} trial {outcome.trial}:"
        if error is not None:
            self.print(f"{'':7} {head} failed: {error}")
            return
        self.summary.add(outcome)
        clock_s = clock(time.monotonic() - self._started)
        tail = (
            f" AS {number(outcome.best_as)}, {outcome.steps} steps, {outcome.evaluations} evaluated, "
            f"{thousands(outcome.tokens)} tokens"
        )
        front = f"[{clock_s:>5}] {self.summary.runs}/{self.total} "
        room = max(10, width() - len(front) - len(tail))
        self.print(front + _cut(head, room) + tail)


def _cut(head: str, room: int) -> str:
    """`TASK trial 0:` with the task's name cut so that it fits."""
    if len(head) <= room:
        return head
    name, _, rest = head.rpartition(" trial ")
    kept = max(3, room - len(rest) - len(" trial ") - 3)
    return f"{name[:kept]}... trial {rest}"
