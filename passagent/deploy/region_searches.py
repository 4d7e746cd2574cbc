"""Searches for passes, region by region: each an ordinary run in the runs directory, to be gone on with."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from passagent.config import Config, override
from passagent.errors import MachineFault, PassagentError, UsageError
from passagent.evaluator.result import Candidate
from passagent.events import Event, Judged
from passagent.search import setup
from passagent.search.startup import Parts, begin
from passagent.search.thread import Stoppable
from passagent.store import Store, runs
from passagent.store.database import DATABASE
from passagent.store.runs import Run
from passagent.tasks import Task, load_task

log = logging.getLogger("passagent.optimize")


MOST_AT_ONCE, CORES = 4, 4
"""Searches for regions on one GPU, and how many of the host's cores each needs."""


@dataclass(frozen=True)
class Wanted:
    """A region to be searched."""

    name: str
    path: Path
    """Path of its task."""
    known: dict[str, str] | None = None
    """Files of a pass of the library: they are measured first."""


@dataclass
class RegionSearches:
    """The searches, the first regions first, until a person stops them or the clock cuts them."""

    runs_dir: Path
    config: Config
    say: Callable[[str], object]
    deadline: float | None = None
    """By time.monotonic()."""
    parts: Parts = field(default_factory=Parts)
    stop_reason: str | None = None
    is_interrupted: bool = False
    failed: dict[str, str] = field(default_factory=dict)
    """Regions that could not be judged, and why."""
    _sessions: dict[str, Stoppable] = field(default_factory=dict)
    """Sessions of the regions that are searched now."""

    def stop(self, reason: str, interrupted: bool = False) -> None:
        """Begin no more, and stop those under way: they can be gone on with. The first reason counts."""
        self.stop_reason = self.stop_reason or reason
        self.is_interrupted = self.is_interrupted or interrupted
        for session in self._sessions.values():
            session.stop(reason, interrupted=True)

    async def run(self, wanted: Sequence[Wanted], begun: Callable[[Stoppable], object]) -> None:
        """Search those that have no finished run. Raises UsageError, MachineFault."""
        begun(self)
        left = iter(list(enumerate(wanted, start=1)))

        async def search_until_the_deadline() -> None:
            left_s = None if self.deadline is None else self.deadline - time.monotonic()
            try:
                async with asyncio.timeout(left_s) as limit:
                    for number, one in left:
                        if spent := self._spent():
                            self.stop(spent)
                        if self.stop_reason is not None:
                            return
                        await self._search(one, f"{number} of {len(wanted)}")
            except TimeoutError:
                if not limit.expired():
                    raise
                self.stop("the time is over")

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(at_once(self.config)):
                    group.create_task(search_until_the_deadline())
        except* (UsageError, MachineFault) as errors:
            raise errors.exceptions[0] from None

    def _spent(self) -> str | None:
        """Why no further search may begin: the runs together took the tokens or the money of one."""
        limits = self.config.search
        if (limits.max_tokens is None and limits.max_cost is None) or not has_runs(self.runs_dir):
            return None
        with Store.open(self.runs_dir, create=False) as store:
            made = runs.list_runs(store)
        if limits.max_tokens is not None and sum(run.tokens for run in made) >= limits.max_tokens:
            return f"{limits.max_tokens} tokens are spent"
        if limits.max_cost is not None and sum(run.cost for run in made) >= limits.max_cost:
            return f"{limits.max_cost} USD are spent"
        return None

    async def _search(self, wanted: Wanted, place: str) -> None:
        try:
            task = load_task(wanted.path)
            if finished_run(self.runs_dir, task) is not None:
                return
            known = ", from a pass of the library" if wanted.known else ""
            self.say(f"region {place}: {wanted.name}{known}")
            await self._converse(wanted, task)
        except (UsageError, MachineFault):
            raise
        except Exception as error:  # a crash is this region's alone: the others go on
            log.exception("%s", wanted.name)
            kind = "" if isinstance(error, PassagentError) else f"{type(error).__name__}: "
            self.failed[wanted.name] = f"{kind}{error}"
            self.say(f"  {kind}{error}")

    async def _converse(self, wanted: Wanted, task: Task) -> None:
        config = self._config(wanted)

        def take(session: Any) -> None:
            self._sessions[wanted.name] = session
            if self.stop_reason is not None:
                session.stop(self.stop_reason, interrupted=True)

        def tell(event: Event) -> None:
            if isinstance(event, Judged):
                score = f", AS {event.as_score:.3f}" if event.as_score is not None else ""
                self.say(f"  {wanted.name}: {event.status}{score}: {event.note}")

        with (
            begin(config, task, replace(self.parts, begun=time.monotonic())) as parts,
            setup.started(self.runs_dir, task, config, False, parts) as prepared,
        ):
            try:
                await setup.work(prepared, tell, take)
            finally:
                self._sessions.pop(wanted.name, None)

    def _config(self, wanted: Wanted) -> Config:
        if wanted.known is None:
            return self.config
        seed = self.runs_dir / "known" / wanted.path.name
        Candidate(wanted.known).write(seed)
        return override(self.config, {"search.seed_dir": str(seed), "search.iters": 1, "search.islands": 1})


def at_once(config: Config) -> int:
    """How many regions are searched at once: on a GPU the host compiles for one while others are timed.

    One where tokens or money are limited: each run takes what the runs before it have left.
    """
    limits = config.search
    if config.evaluator.device == "cpu" or limits.max_tokens is not None or limits.max_cost is not None:
        return 1
    return max(1, min(MOST_AT_ONCE, len(os.sched_getaffinity(0)) // CORES))


def has_runs(runs_dir: Path) -> bool:
    """Return whether there is a database of runs."""
    return (runs_dir / DATABASE).exists()


def finished_run(runs_dir: Path, task: Task) -> Run | None:
    """The newest run of a task that came to its end; None if there is none."""
    return next((run for run in _runs_of(runs_dir, task) if run.state == "finished"), None)


def best_run(runs_dir: Path, task: Task) -> Run | None:
    """Return the newest finished run, else the newest that was stopped before its end."""
    return finished_run(runs_dir, task) or next(iter(_runs_of(runs_dir, task)), None)


def _runs_of(runs_dir: Path, task: Task) -> list[Run]:
    if not has_runs(runs_dir):
        return []
    with Store.open(runs_dir, create=False) as store:
        return [run for run in runs.list_runs(store) if run.task_key == task.key]
