"""The budget of a collection: tokens, money, evaluations and time, over all its trials and all its sessions.

What is spent is what the database says. What calls and evaluations under way may still take is held here: one
process collects into a database at a time (resumable.py).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from passagent.config import SearchConfig
from passagent.data.collect import trials
from passagent.data.collect.trials import Spent
from passagent.search import stop
from passagent.search.session import Stopping
from passagent.search.stop import Progress, Want
from passagent.store import Store

_LOOK_S = 0.25
"""Between two looks of who waits for room, at whether its own run is to stop, s."""


@dataclass
class CollectionBudget:
    """See search.session.Budget."""

    store: Store
    model: str
    limits: SearchConfig
    end: Callable[[str], None]
    """Called with the reason when the budget ends the collection."""
    started: float = field(default_factory=time.monotonic)
    _under_way: dict[str, Spent] = field(default_factory=dict)
    """The runs of the trials under way, and what each had taken when it was taken up."""
    _wants: list[Want] = field(default_factory=list)
    """What is held."""
    _freed: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self._rest = trials.spent(self.store, self.model)
        """What all trials that are not under way have taken; so no question looks through all of them."""
        self._elapsed_before = trials.elapsed_s(self.store, self.model)

    @property
    def elapsed_s(self) -> float:
        """Time spent on the collection, this session's and all before, s."""
        return self._elapsed_before + time.monotonic() - self.started

    @property
    def left_s(self) -> float | None:
        """What is left of the time, s; None without a limit."""
        limit = self.limits.max_time_s
        return None if limit is None else limit - self.elapsed_s

    def save_time(self) -> None:
        """Store the time spent."""
        trials.set_elapsed(self.store, self.model, self.elapsed_s)

    def take_up(self, run_id: str) -> None:
        """A trial is under way from now on."""
        self._under_way[run_id] = trials.spent_by(self.store, [run_id])

    def put_down(self, run_id: str) -> None:
        """A trial is not under way any more."""
        self._rest = self.spent(only=[run_id])
        del self._under_way[run_id]

    def spent(self, only: list[str] | None = None) -> Spent:
        """What the collection has taken by now; with `only`, of the trials under way these only are."""
        chosen = list(self._under_way) if only is None else only
        here = trials.spent_by(self.store, chosen) if chosen else Spent()
        before = [self._under_way[run_id] for run_id in chosen]
        return Spent(
            self._rest.tokens + here.tokens - sum(one.tokens for one in before),
            self._rest.cost + here.cost - sum(one.cost for one in before),
            self._rest.evaluations + here.evaluations - sum(one.evaluations for one in before),
        )

    def progress(self) -> Progress:
        """What the stopping rules look at."""
        spent = self.spent()
        return Progress(
            episodes=0,
            evaluations=spent.evaluations,
            tokens=spent.tokens,
            elapsed_s=self.elapsed_s,
            best_as=None,
            cost=spent.cost,
        )

    def reached(self) -> str | None:
        """Which limit is reached, None if none is."""
        limits = self.limits
        rules: list[stop.StopRule] = []
        if limits.max_tokens is not None:
            rules.append(stop.tokens(limits.max_tokens))
        if limits.max_cost is not None:
            rules.append(stop.cost(limits.max_cost))
        if limits.max_time_s is not None:
            rules.append(stop.time(limits.max_time_s))
        if limits.max_evaluations is not None:
            rules.append(stop.evaluations(limits.max_evaluations))
        return stop.any_of(rules)(self.progress()) if rules else None

    async def admit(self, want: Want, check: Callable[[], object]) -> Callable[[], None]:
        """See search.session.Budget. Without room, and with nothing under way to wait for, it ends."""
        while True:
            check()
            if not stop.is_limited(self.limits, want):
                return lambda: None
            reason = stop.lack(self.limits, self.progress(), want, stop.total(self._wants))
            if reason is None:
                self._wants.append(want)
                return lambda: self._release(want)
            if not self._wants:
                self.end(reason)
                raise Stopping(reason)
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_S):
                    await self._freed.wait()

    def _release(self, want: Want) -> None:
        if want in self._wants:  # twice does no harm
            self._wants.remove(want)
        self._freed.set()
        self._freed = asyncio.Event()
