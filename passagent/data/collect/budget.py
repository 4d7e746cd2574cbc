"""The budget of a collection: tokens, money, evaluations and time, over all its trials and all its sessions.

Everything that was spent is in the database. This process holds the room that calls and evaluations under way
may still take: one process collects into a database at a time (system/resumable.py).
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from passagent.config import SearchConfig
from passagent.search import stop
from passagent.search.session import Stopping
from passagent.search.stop import Progress, Want
from passagent.store import Store

_LOOK_S = 0.25
"""Between two looks at whether a run that waits for room is to stop, s."""
_SPENT = (
    "SELECT coalesce(sum(input_tokens + output_tokens), 0) AS tokens, coalesce(sum(cost), 0.0) AS cost, "
    "coalesce(sum(evaluations), 0) AS evaluations FROM runs WHERE trial IS NOT NULL AND model = :model "
    "AND id {} IN (SELECT value FROM json_each(:ids))"
)


@dataclass
class CollectionBudget:
    """The budget that all trials share; it is a search.session.Budget."""

    store: Store
    model: str
    limits: SearchConfig
    end: Callable[[str], None]
    """Called with the reason when the budget ends the collection."""
    started: float = field(default_factory=time.monotonic)
    _under_way: set[str] = field(default_factory=set)
    """The runs of the trials under way."""
    _held: list[Want] = field(default_factory=list)
    _freed: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self._rules = stop.rules_of(self.limits)
        self._elapsed_before = elapsed_s(self.store, self.model)
        self._sum_up_rest()

    @property
    def elapsed_s(self) -> float:
        """Time spent on the collection, this session's and all before, s."""
        return self._elapsed_before + time.monotonic() - self.started

    @property
    def left_s(self) -> float | None:
        """The rest of the time, s; None without a limit."""
        limit = self.limits.max_time_s
        return None if limit is None else limit - self.elapsed_s

    def take_up(self, run_id: str) -> None:
        """Count a trial as under way from now on."""
        self._under_way.add(run_id)
        self._sum_up_rest()

    def put_down(self, run_id: str) -> None:
        """Count a trial as under way no more."""
        self._under_way.remove(run_id)
        self._sum_up_rest()

    def _sum_up_rest(self) -> None:
        """Sum up the trials that are not under way, so that no later question looks through all of them."""
        self._rest = self._spent("NOT")

    def _spent(self, which: str) -> dict[str, float]:
        ids = json.dumps(sorted(self._under_way))
        return self.store.rows(_SPENT.format(which), {"model": self.model, "ids": ids})[0]

    def progress(self) -> Progress:
        """Return how much the collection has taken by now, as the stopping rules look at it."""
        rest, now = self._rest, self._spent("")
        return Progress(
            episodes=0,
            evaluations=int(rest["evaluations"] + now["evaluations"]),
            tokens=int(rest["tokens"] + now["tokens"]),
            elapsed_s=self.elapsed_s,
            best_as=None,
            cost=rest["cost"] + now["cost"],
        )

    def reached(self) -> str | None:
        """Return which limit is reached, None if none is."""
        return self._rules(self.progress())

    async def admit(self, want: Want, check: Callable[[], object]) -> Callable[[], None]:
        """Hold room for `want`, as Budget.admit does. Without room and anything to wait for, it ends."""
        while True:
            check()
            if not stop.is_limited(self.limits, want):
                return lambda: None
            reason = stop.lack(self.limits, self.progress(), want, stop.total(self._held))
            if reason is None:
                self._held.append(want)
                return lambda: self._release(want)
            if not self._held:
                self.end(reason)
                raise Stopping(reason)
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_S):
                    await self._freed.wait()

    def _release(self, want: Want) -> None:
        if want in self._held:  # twice does no harm
            self._held.remove(want)
        self._freed.set()
        self._freed = asyncio.Event()


def elapsed_s(store: Store, model: str) -> float:
    """Return the time that was spent on the model's collection, s."""
    row = store.row("SELECT elapsed_s FROM collections WHERE model = :model", {"model": model})
    return float(row["elapsed_s"]) if row else 0.0


def set_elapsed(store: Store, model: str, seconds: float) -> None:
    """Store the time that was spent on the model's collection, s."""
    store.execute(
        "INSERT INTO collections (model, elapsed_s) VALUES (:model, :seconds) "
        "ON CONFLICT (model) DO UPDATE SET elapsed_s = max(elapsed_s, excluded.elapsed_s)",
        {"model": model, "seconds": seconds},
    )
